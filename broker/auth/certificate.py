"""Authentication by client certificate: the user is its subject, as `tls.username_from` configures.

A user name in CONNECT is then ignored, as with Mosquitto's `use_identity_as_username`: a client can't take the name of
another user.
"""

from .authenticator import Credentials, Identity, ReasonCode, Verdict


class CertificateUsers:
    """Accepts clients with a verified certificate."""

    name = "certificate"
    dummy_hash = None

    def authenticate(self, credentials: Credentials) -> Verdict | None:
        """None: there is no certificate."""
        if not credentials.certificate:
            return None
        return Verdict(ReasonCode.ACCEPTED, Identity(credentials.certificate))

    def renew(self, identity: Identity) -> Identity | None:
        """A handshake is not repeated."""
        return identity
