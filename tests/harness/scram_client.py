"""A client of SCRAM-SHA-256 (RFC 5802, RFC 7677), which can also be made to do it wrongly.

Written for the tests, from the RFC: it shares nothing with the node's side.
"""

import base64
import hashlib
import hmac
import secrets


class ScramClient:
    """One exchange.

    Args:
        user: name, as it is sent (`=2C` for a comma).
        password: of the user.
        nonce: of the client; a random one if empty.
        header: the GS2 header.
    """

    def __init__(self, user: str, password: str, nonce: str = "", header: str = "n,,") -> None:
        self.password = password.encode()
        self.header = header
        self.bare = f"n={user},r={nonce or base64.b64encode(secrets.token_bytes(18)).decode()}"
        self.server_first = ""
        self.signature = b""  # that the node has to send

    def first(self) -> bytes:
        """The client's first message."""
        return f"{self.header}{self.bare}".encode()

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the node's first message."""
        return dict(part.split("=", 1) for part in self.server_first.split(","))

    def final(self, server_first: bytes, **wrong: str) -> bytes:
        """The client's final message; `wrong` replaces fields of it (`c`, `r` before the proof is made, `p` after)."""
        self.server_first = server_first.decode()
        fields = self.fields
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        binding = wrong.get("c", base64.b64encode(self.header.encode()).decode())
        unsigned = f"c={binding},r={wrong.get('r', fields['r'])}"
        signed = f"{self.bare},{self.server_first},{unsigned}".encode()
        salted = hashlib.pbkdf2_hmac("sha256", self.password, salt, rounds)
        key = hmac.digest(salted, b"Client Key", "sha256")
        mask = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, mask, strict=True))
        self.signature = b"v=" + base64.b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        )
        return f"{unsigned},p={wrong.get('p', base64.b64encode(proof).decode())}".encode()
