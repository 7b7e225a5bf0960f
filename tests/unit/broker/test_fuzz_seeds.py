"""The seeds of the fuzzer of connections reach what they are for, without the fuzzer."""

import pytest

from flockmq._speedups.codec.packets import Auth
from flockmq.broker.core import data_plane
from flockmq.broker.handlers import dispatch
from flockmq.broker.handlers.auth import AuthHandler
from tests.fuzz import fuzz_connection


def keep_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target replaces these functions: afterwards they are as before."""
    for module in (data_plane, dispatch):
        monkeypatch.setattr(module, "report", module.report)


def test_an_internal_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_reports(monkeypatch)

    def fail(self: AuthHandler, connection: object, packet: Auth) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(AuthHandler, "handle", fail)
    target = fuzz_connection.make_target()
    with pytest.raises(SystemExit, match="ZeroDivisionError"):
        for seed in fuzz_connection.auth_seeds():
            target(seed)


def test_seeds_authenticate_again_in_the_middle_of_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: set[int] = set()
    begun: list[bool] = []
    handle, again = AuthHandler.handle, AuthHandler._again

    def seen(self: AuthHandler, connection: object, packet: Auth) -> None:
        codes.add(packet.reason_code)
        handle(self, connection, packet)  # type: ignore[arg-type]

    def renewed(self: AuthHandler, connection: object, found: object, packet: Auth) -> None:
        again(self, connection, found, packet)  # type: ignore[arg-type]
        begun.append(True)

    monkeypatch.setattr(AuthHandler, "handle", seen)
    monkeypatch.setattr(AuthHandler, "_again", renewed)
    keep_reports(monkeypatch)
    target = fuzz_connection.make_target()
    for seed in fuzz_connection.auth_seeds():
        target(seed)
    assert {0x18, 0x19} <= codes
    assert len(begun) > 50
