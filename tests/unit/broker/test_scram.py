"""SCRAM-SHA-256 on the node's side: the vector of RFC 7677, credentials, and messages that are wrong."""

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from flockmq.broker.auth import saslprep as saslprep_module
from flockmq.broker.auth.access_store import Kind
from flockmq.broker.auth.authenticator import Challenge, Credentials, Identity, ReasonCode, Step, Verdict
from flockmq.broker.auth.passwords import SCRAM_SCHEME, hash_password, parse_hash, scram_credentials
from flockmq.broker.auth.rules import parse_rules
from flockmq.broker.auth.saslprep import saslprep
from flockmq.broker.auth.scram import ScramSha256
from flockmq.broker.auth.stored_user import Away, StoredUser
from flockmq.broker.auth.users import StoredUsers, Users
from flockmq.broker.auth.verifier import Verifier
from tests.harness.scram_client import ScramClient

ROUNDS = 4096
ADA = scram_credentials(b"engine", ROUNDS)
SECRET = b"s" * 32


def client(username: str | None = None) -> Credentials:
    return Credentials("c", username, None, "192.0.2.7:1", 5)


async def find(username: str) -> StoredUser | None:
    users = {"ada": ADA, "bob": hash_password(b"builder"), "a,b": ADA}
    if username == "away":
        raise Away
    stored = users.get(username)
    return None if stored is None else StoredUser(stored, Identity(username, method="password file"))


def exchange() -> ScramSha256:
    return ScramSha256(find, ROUNDS, lambda: SECRET)


def started(scram: ScramSha256, data: bytes, username: str | None = None) -> Step:
    return asyncio.run(scram.start(client(username), data))


def challenge(scram: ScramSha256, data: bytes) -> bytes:
    step = started(scram, data)
    assert isinstance(step, Challenge), step
    return step.data


def verdict(step: Step) -> Verdict:
    assert isinstance(step, Verdict), step
    return step


def finished(scram: ScramSha256, data: bytes) -> Verdict:
    return verdict(asyncio.run(scram.step(data)))


def test_the_vector_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = StoredUser(scram_credentials(b"pencil", 4096, salt), Identity("user"))

    async def find_user(username: str) -> StoredUser | None:
        return stored if username == "user" else None

    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    scram = ScramSha256(find_user, 4096, lambda: SECRET, nonce)
    first = challenge(scram, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == f"r=rOprNGfwEbeRWgbNEkqO{nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    final = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    found = finished(scram, final.encode())
    assert found.code == ReasonCode.ACCEPTED
    assert found.identity.username == "user"
    assert found.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_who_knows_the_password_is_let_in_and_can_check_the_node() -> None:
    for user, header in (("ada", "n,,"), ("ada", "y,,"), ("ada", "n,a=ada,"), ("a=2Cb", "n,,")):
        scram, ada = exchange(), ScramClient(user, "engine", header=header)
        found = finished(scram, ada.final(challenge(scram, ada.first())))
        assert found.code == ReasonCode.ACCEPTED, found
        assert found.data == ada.signature
        assert found.identity == Identity(user.replace("=2C", ","), method="password file")


def test_a_client_may_wait_for_the_first_challenge() -> None:
    scram, ada = exchange(), ScramClient("ada", "engine")
    assert started(scram, b"") == Challenge()
    step = asyncio.run(scram.step(ada.first()))
    assert isinstance(step, Challenge)
    assert finished(scram, ada.final(step.data)).code == ReasonCode.ACCEPTED


def test_an_unknown_user_looks_like_a_known_one() -> None:
    answers = {}
    for user, password in (("ada", "wrong"), ("nobody", "engine"), ("bob", "builder")):
        fields = []
        for _ in range(2):
            scram, one = exchange(), ScramClient(user, password)
            found = finished(scram, one.final(challenge(scram, one.first())))
            fields.append(one.fields)
            assert found.code == ReasonCode.BAD_USERNAME_OR_PASSWORD
            assert found.data == b""
        assert fields[0]["s"] == fields[1]["s"]  # the salt stays, as a user's does
        assert fields[0]["r"] != fields[1]["r"]
        answers[user] = len(fields[0]["s"]), fields[0]["i"], len(fields[0]["r"])
    assert len(set(answers.values())) == 1
    assert scram_salt("nobody") != scram_salt("somebody")


def scram_salt(user: str) -> str:
    one = ScramClient(user, "")
    one.server_first = challenge(exchange(), one.first()).decode()
    return one.fields["s"]


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"n,,",
        b"n,,n=ada",
        b"n,,r=nonce,n=ada",
        b"n,,n=ada,r=",
        b"n,,n=,r=nonce",
        b"n,,m=ext,n=ada,r=nonce",
        b"n,,n=a=ZZda,r=nonce",
        b"n,,n=ada,r=no\x7fnce",
        b"n,,n=ad\x00a,r=nonce",
        b"n,,n=ada\xff,r=nonce",
        b"p=tls-exporter,,n=ada,r=nonce",
        b"p=tls-unique,,n=ada,r=nonce",
        b"n,,n=ada,r=" + b"x" * 2000,
    ],
)
def test_wrong_first_messages(data: bytes) -> None:
    assert verdict(started(exchange(), data)).code == ReasonCode.BAD_USERNAME_OR_PASSWORD


def test_nobody_acts_as_another_user() -> None:
    ada = ScramClient("ada", "engine", header="n,a=bob,")
    assert verdict(started(exchange(), ada.first())).code == ReasonCode.NOT_AUTHORIZED
    ada = ScramClient("ada", "engine")
    assert verdict(started(exchange(), ada.first(), "bob")).code == ReasonCode.BAD_USERNAME_OR_PASSWORD
    assert isinstance(started(exchange(), ada.first(), "ada"), Challenge)


def test_away_is_no_wrong_password() -> None:
    assert verdict(started(exchange(), ScramClient("away", "x").first())).code == ReasonCode.SERVER_UNAVAILABLE


Change = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final[:-5] + b"AAAA=",
        lambda final: final.replace(b",p=", b",x=1,y=2,p="),  # signed by no user
        lambda final: final.replace(b",r=", b",r=x"),
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"c=biws", b"c=bi"),
        lambda final: final.partition(b",p=")[0],
        lambda final: final.partition(b",p=")[0] + b",p=",
        lambda final: final.partition(b",p=")[0] + b",p=AAAA",
        lambda final: final + b",x=1",
        lambda final: b"\xff" + final,
        lambda final: b"",
    ],
)
def test_wrong_final_messages(change: Change) -> None:
    scram, ada = exchange(), ScramClient("ada", "engine")
    final = ada.final(challenge(scram, ada.first()))
    assert finished(scram, change(final)).code == ReasonCode.BAD_USERNAME_OR_PASSWORD
    assert finished(scram, final).code == ReasonCode.BAD_USERNAME_OR_PASSWORD  # one attempt for each exchange


def test_a_final_message_fits_one_exchange_only() -> None:
    scram, ada = exchange(), ScramClient("ada", "engine", nonce="fixed")
    final = ada.final(challenge(scram, ada.first()))
    assert finished(scram, final).code == ReasonCode.ACCEPTED
    later = exchange()
    challenge(later, ada.first())
    assert finished(later, final).code == ReasonCode.BAD_USERNAME_OR_PASSWORD


def test_a_password_that_changes_meanwhile_is_refused() -> None:
    users = {"ada": ADA}
    disabled = False

    async def find_user(username: str) -> StoredUser | None:
        return StoredUser(users[username], Identity(username), disabled) if username in users else None

    def play(meanwhile: Callable[[], object]) -> ReasonCode:
        scram, ada = ScramSha256(find_user, ROUNDS, lambda: SECRET), ScramClient("ada", "engine")
        final = ada.final(challenge(scram, ada.first()))
        meanwhile()
        return finished(scram, final).code

    assert play(lambda: None) == ReasonCode.ACCEPTED
    assert play(lambda: users.update(ada=scram_credentials(b"new", ROUNDS))) == ReasonCode.BAD_USERNAME_OR_PASSWORD
    users["ada"] = ADA
    disabled = True
    assert play(lambda: None) == ReasonCode.NOT_AUTHORIZED
    disabled = False
    assert play(users.clear) == ReasonCode.BAD_USERNAME_OR_PASSWORD


# ---- credentials ----


def test_credentials_verify_plain_passwords_too() -> None:
    assert ADA.scheme == SCRAM_SCHEME
    assert parse_hash(ADA.text) == ADA
    assert ADA.matches(b"engine")
    assert not ADA.matches(b"Engine")
    assert not ADA.matches(b"\xff")
    assert not ADA.matches(b"")
    assert not ADA.dummy().matches(b"engine")
    assert scram_credentials("\u2168".encode(), ROUNDS).matches(b"IX")  # RFC 4013, example 5
    assert scram_credentials(b"engine", ROUNDS).text != ADA.text


@pytest.mark.parametrize("password", [b"", b"\xff", b"a\x07", "\u0627\u0031".encode(), "\u0221".encode()])
def test_passwords_that_scram_can_not_have(password: bytes) -> None:
    with pytest.raises(ValueError):
        scram_credentials(password, ROUNDS)


def test_damaged_credentials() -> None:
    parts = ADA.text.split("$")
    for place, wrong in ((2, "4095"), (2, "x"), (2, "99999999999"), (3, ""), (3, "%"), (4, "AAAA"), (5, "AAAA")):
        with pytest.raises(ValueError) as caught:
            parse_hash("$".join([*parts[:place], wrong, *parts[place + 1 :]]))
        assert parts[4] not in str(caught.value)
    with pytest.raises(ValueError):
        parse_hash(ADA.text + "$AAAA")


def test_saslprep() -> None:
    examples = {"I\xadX": "IX", "user": "user", "USER": "USER", "\xaa": "a", "\u2168": "IX", "a\xa0b": "a b"}
    assert {text: saslprep(text) for text in examples} == examples  # RFC 4013, section 3
    for wrong in ("\x07", "\u0627\u0031", "", "\xad", "\ue000"):
        with pytest.raises(ValueError):
            saslprep(wrong)
    assert saslprep("\u0627\u0031\u0628") == "\u0627\u0031\u0628"
    assert saslprep("\u0221") == "\u0221"  # unassigned in Unicode 3.2: allowed unless it is stored


def test_saslprep_of_ascii_needs_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saslprep_module, "PROHIBITED", (pytest.fail,))
    for stored in (False, True):
        assert saslprep("".join(map(chr, range(32, 127))), stored=stored) == "".join(map(chr, range(32, 127)))
        for wrong in (*map(chr, range(32)), "\x7f"):
            with pytest.raises(ValueError, match="can't have"):
                saslprep(f"a{wrong}", stored=stored)


# ---- users of the store ----


class Store:
    """A store with these users."""

    def __init__(self, **users: object) -> None:
        self.users = {name: json.dumps(user).encode() for name, user in users.items()}
        self.connected = True

    def read(self, kind: Kind, names: Sequence[str], then: Callable[[list[bytes | None] | None], object]) -> None:
        then([self.users.get(name) for name in names])


def test_users_of_the_store() -> None:
    rules = ["topic read a/#"]
    store = Store(ada={"hash": ADA.text, "rules": rules}, eve={"hash": ADA.text, "disabled": True}, odd={"hash": ""})
    cache = Users(cast(Any, store), lambda names: None, set)
    users = StoredUsers(lambda: cache, Verifier())

    def play(user: str, password: str = "engine") -> Verdict:
        scram, one = ScramSha256(users.find_user, ROUNDS, lambda: SECRET), ScramClient(user, password)
        step = started(scram, one.first())
        return step if isinstance(step, Verdict) else finished(scram, one.final(step.data))

    found = play("ada")
    assert (found.code, found.identity.rules) == (ReasonCode.ACCEPTED, parse_rules(rules))
    assert found.identity.method == StoredUsers.name
    assert play("ada", "wrong").code == ReasonCode.BAD_USERNAME_OR_PASSWORD
    assert play("eve").code == ReasonCode.NOT_AUTHORIZED
    assert play("eve", "wrong").code == ReasonCode.BAD_USERNAME_OR_PASSWORD
    assert play("bob").code == ReasonCode.BAD_USERNAME_OR_PASSWORD
    assert play("odd").code == ReasonCode.SERVER_UNAVAILABLE
    store.connected = False
    cache = Users(cast(Any, store), lambda names: None, set)
    assert play("ada").code == ReasonCode.SERVER_UNAVAILABLE


@pytest.mark.parametrize(
    "name", ["\ufdfa" * 21_000, "\ufdfa" * 85, "a" * 60_000, "a" * 257, "\xe9" * 200], ids=lambda name: str(len(name))
)
@pytest.mark.parametrize("place", ["name", "authorization", "CONNECT"])
def test_long_names_cost_nothing(monkeypatch: pytest.MonkeyPatch, name: str, place: str) -> None:
    """One CONNECT without credentials stopped the loop for a second: NFKC makes 18 characters of U+FDFA."""
    looked_at = []

    def looks(char: str) -> bool:
        looked_at.append(char)
        return False

    monkeypatch.setattr(saslprep_module, "PROHIBITED", (looks,) * 9)
    names = {"name": "ada", "authorization": "", "CONNECT": None} | {place: name}
    header = f"n,a={names['authorization']}," if names["authorization"] else "n,,"
    step = started(exchange(), f"{header}n={names['name']},r=nonce".encode(), names["CONNECT"])
    assert verdict(step).code == ReasonCode.BAD_USERNAME_OR_PASSWORD
    assert len(looked_at) <= 9 * 2 * 256


@pytest.mark.parametrize("long", ["nonce", "extension"])
def test_long_messages_are_refused(long: str) -> None:
    parts = {"nonce": b"n,,n=ada,r=" + b"x" * 1025, "extension": b"n,,n=ada,r=x,a=" + b"y" * 60_000}
    assert verdict(started(exchange(), parts[long])).code == ReasonCode.BAD_USERNAME_OR_PASSWORD
    scram = exchange()
    challenge(scram, b"n,,n=ada,r=nonce")
    assert "more than 4096 bytes" in finished(scram, b"c=biws,r=nonce,p=" + b"A" * 60_000).reason
