"""A verified client certificate is a login: its subject, as `tls.username_from` says, is the user.

A user name in CONNECT is then not looked at, as with Mosquitto's `use_identity_as_username`: nobody becomes another by
asking for it.
"""

from broker.auth.authenticator import Credentials, Identity, ReturnCode, Verdict


class CertificateUsers:
    """Lets clients with a verified certificate in."""

    name = "certificate"
    decoy = None

    def authenticate(self, credentials: Credentials) -> Verdict | None:
        """None: there is no certificate."""
        if not credentials.certificate:
            return None
        return Verdict(ReturnCode.ACCEPTED, Identity(credentials.certificate))

    def renew(self, identity: Identity) -> Identity | None:
        """A handshake is not repeated."""
        return identity
