"""Tenants with users and rules of their own at a listener that they share with others (`auth_of`)."""

import asyncio
import json
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import jwt
import pytest

from flockmq._speedups.protocol.close_reasons import USER_REMOVED
from flockmq.broker.auth.access_control import AccessControl
from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Verdict
from flockmq.broker.config.load import load
from flockmq.broker.errors import ConfigError
from tests.conftest import StartBroker
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, WRONG, AccessFiles, refused

ACCEPTED, BAD = ReasonCode.SUCCESS, ReasonCode.BAD_USERNAME_OR_PASSWORD
BY_USER: list[dict[str, object]] = [{"name": "acme", "user": "acme-*", "auth_of": "acme"}]
BY_HOST: list[dict[str, object]] = [{"name": "acme", "server_name": "acme.example", "auth_of": "acme"}]
SECRET = "a secret of more than thirty-two bytes"


@pytest.fixture
def store() -> str:
    return "memory"


class Files:
    """Users of all, and users of the tenant acme."""

    def __init__(self, directory: Path) -> None:
        self.general, self.acme = directory / "general", directory / "acme"
        for folder in (self.general, self.acme):
            folder.mkdir()
        self.of_all, self.of_acme = AccessFiles(self.general), AccessFiles(self.acme)

    def settings(self, tenants: list[dict[str, object]], **more: object) -> dict[str, object]:
        return {
            "auth.failure_delay": 0,
            "auth.password_file": self.of_all.passwords,
            "listeners.acme.auth.password_file": self.of_acme.passwords,
            "tenants": json.dumps(tenants),
            **more,
        }


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Ada is a user of both, with another password; acme-1 is a user of acme, acme-2 is not."""
    found = Files(tmp_path)
    found.of_all.users("ada", "acme-2")
    found.of_acme.users("ada", "acme-1", changed={"ada": "acme"})
    return found


def ask(access: AccessControl, name: str | None, password: str = "", **more: Any) -> Verdict:
    given = Credentials("c", name, (password or name or "").encode() or None, "192.0.2.1", 5, **more)

    async def answer() -> Verdict:
        found = access.authenticate(given)
        return await found if isinstance(found, Awaitable) else found

    return asyncio.run(answer())


def controlled(settings: dict[str, object]) -> AccessControl:
    return AccessControl(load({name: str(value) for name, value in settings.items()}, {}), cast(Any, None))


def test_a_broker_with_users_of_a_tenant(files: Files, start_broker: StartBroker) -> None:
    files.of_acme.rules("user acme-1", "topic readwrite own/#")
    settings = files.settings(BY_USER, **{"listeners.acme.auth.acl_file": files.of_acme.acl})
    broker = start_broker(settings)
    with Wire(broker.port, name="one").connect("user=acme-1 pass=acme-1") as one:
        one.send("subscribe 1 own/x:0 other:0")
        one.expect("suback 1 0 0x80")
        with Wire(broker.port, name="all").connect("user=ada pass=ada") as general:
            general.subscribe("own/x:0")
            general.send("publish own/x hello")
            general.packet()
            one.expect_nothing()
        refused(broker, "user=acme-2 pass=acme-2", WRONG)
        refused(broker, "user=ada pass=acme", WRONG)
        refused(broker, "", NOT_AUTHORIZED)
        files.of_all.users("acme-1", "acme-2")
        broker.wait_for_log("users and access rules were reloaded")
        one.expect_nothing()
        files.of_acme.users("ada")
        one.expect(None)


def test_a_tenant_by_the_name_that_a_client_asks_for(files: Files) -> None:
    """One name of a user, two users."""
    access = controlled(files.settings(BY_HOST))
    assert ask(access, "ada").identity.tenant == ""
    assert ask(access, "ada", "acme").code == BAD
    found = ask(access, "ada", "acme", server_name="acme.example")
    assert found.code == ACCEPTED and found.identity.tenant == "acme"
    assert ask(access, "ada", "ada", server_name="acme.example").code == BAD
    assert ask(access, "acme-2", server_name="acme.example").code == BAD
    assert access.renewed(found.identity, "c") == found.identity
    files.of_acme.users("acme-1")
    assert access.follow_files()
    assert access.renewed(found.identity, "c") is USER_REMOVED
    access.close()


def test_nobody_enters_by_the_users_of_all(files: Files, tmp_path: Path) -> None:
    """A client that shows its name only when it authenticates, as with a token, is refused."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    access = controlled(files.settings(BY_USER, **{"auth.jwt_secret_file": secret}))
    token = jwt.encode({"sub": "acme-1", "exp": time.time() + 60}, SECRET, "HS256")
    assert ask(access, "jwt", token).code == ReasonCode.NOT_AUTHORIZED
    assert ask(access, "acme-1", token).code == ACCEPTED, "the listener of the tenant inherits [auth]"
    other = jwt.encode({"sub": "bob", "exp": time.time() + 60}, SECRET, "HS256")
    assert ask(access, "jwt", other).code == ACCEPTED
    access.close()


@pytest.mark.parametrize(
    ("tenants", "more", "fault"),
    [
        ([*BY_USER, {"name": "b", "auth_of": "none"}], {}, "no listener none"),
        ([{"name": "*", "user": "*-x", "auth_of": "acme"}], {}, "no claim, with auth_of"),
        ([{"name": "acme", "claim": "org=acme", "auth_of": "acme"}], {}, "no claim, with auth_of"),
        ([*BY_USER, {"name": "acme", "server_name": "acme.example"}], {}, "differ in auth_of"),
        (BY_USER, {"listeners.acme.auth.password_file": "", "auth.password_file": ""}, "does not authenticate"),
        ([{"name": "acme", "user": "acme-*"}], {}, "has no addresses"),
    ],
)
def test_a_tenant_that_would_be_open_is_refused(
    files: Files, tenants: list[dict[str, object]], more: dict[str, object], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        controlled(files.settings(tenants, **more))


def test_a_listener_with_addresses_lends_its_users(files: Files) -> None:
    """Its own clients are of the tenant, too, by a rule of their own."""
    settings = files.settings([*BY_HOST, {"name": "acme", "listener": "acme"}])
    access = controlled({**settings, "listeners.acme.listen": "127.0.0.1:0"})
    assert ask(access, "acme-1", server_name="acme.example").identity.tenant == "acme"
    assert ask(access, "acme-1", listener="acme").identity.tenant == "acme"
    assert ask(access, "acme-1").code == BAD
    access.close()
