"""Password files and ACL files for tests, and brokers that use them."""

import base64
import hashlib
import os
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from flockmq._speedups.codec.reason_codes import return_code
from flockmq.broker.auth.authenticator import ReasonCode
from tests.conftest import StartBroker
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import Wire

WRONG = return_code(ReasonCode.BAD_USERNAME_OR_PASSWORD)
NOT_AUTHORIZED = return_code(ReasonCode.NOT_AUTHORIZED)
UNAVAILABLE = return_code(ReasonCode.SERVER_UNAVAILABLE)


def quick_hash(password: str) -> str:
    """A hash that costs nothing, in Mosquitto's oldest format."""
    salt = os.urandom(12)
    digest = hashlib.sha512(password.encode() + salt).digest()
    return f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


class AccessFiles:
    """The files of one test; users have their own names as passwords."""

    def __init__(self, directory: Path) -> None:
        self.passwords = directory / "passwords"
        self.acl = directory / "acl"
        self._hashes: dict[str, str] = {}

    def users(self, *names: str, changed: Mapping[str, str] | None = None) -> None:
        """Let exactly these in; `changed` are passwords that are not the name of their user."""
        new = changed or {}
        for name in (*self._hashes, *names, *new):
            if name not in names:
                self._hashes.pop(name, None)
            elif name in new or name not in self._hashes:
                self._hashes[name] = quick_hash(new.get(name, name))
        self._write_users("")

    def comment(self, text: str) -> None:
        """Write the file again with a comment, and the same users in another order."""
        self._hashes = dict(reversed(self._hashes.items()))
        self._write_users(f"# {text}\n")

    def _write_users(self, head: str) -> None:
        fresh = self.passwords.with_suffix(".new")
        fresh.write_text(head + "".join(f"{name}:{stored}\n" for name, stored in self._hashes.items()))
        fresh.chmod(0o600)
        fresh.rename(self.passwords)

    def rules(self, *lines: str) -> None:
        """Let these rules hold."""
        fresh = self.acl.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.rename(self.acl)

    def settings(self, **more: object) -> dict[str, object]:
        """The settings of a broker that uses the files."""
        found: dict[str, object] = {"auth.failure_delay": 0, "http.listen": "127.0.0.1:0"}
        if self.passwords.exists():
            found["auth.password_file"] = self.passwords
        if self.acl.exists():
            found["auth.acl_file"] = self.acl
        return found | {name.replace("__", "."): value for name, value in more.items()}

    def start(self, start_broker: StartBroker, **more: object) -> Broker:
        """A broker that uses them."""
        return start_broker(self.settings(**more))


def login(broker: Broker, user: str, client_id: str = "", line: str = "") -> Wire:
    """A client of a user; the password is the user's name."""
    return Wire(broker.port, name=client_id or user).connect(f"user={user} pass={user} {line}")


def refused(broker: Broker, line: str, code: int, client_id: str = "c") -> None:
    """This CONNECT is answered with a return code, and closed."""
    with Wire(broker.port, name=client_id) as client:
        client.send(f"connect {line}")
        client.expect(f"connack {code}", None)


def counted(broker: Broker, name: str) -> int:
    """A figure of the broker, which was started with `http.listen`."""
    address = broker.wait_for_log("HTTP server is listening")["listen"]
    with urllib.request.urlopen(f"{address}/metrics", timeout=DEADLINE) as answer:
        found = re.search(rf"^flockmq_{name}(?:_total)?(?:{{.*}})? (\S+)$", answer.read().decode(), re.M)
    assert found, name
    return int(float(found[1]))
