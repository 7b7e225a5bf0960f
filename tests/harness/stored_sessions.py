"""Sessions in the keys of a Redis, real or not, as tests look at them."""

from collections.abc import Mapping
from typing import Any

from redis.client import NEVER_DECODE

from flockmq.cluster.redis.packed_session import PackedSession


def sessions_in(keys: Mapping[bytes, Any]) -> dict[bytes, PackedSession]:
    """The sessions by client id. `keys`: all keys and their values."""
    return {key[5:]: PackedSession.decode(text) for key, text in keys.items() if key.startswith(b"mq:s:")}


def queue_of(client_id: bytes, session: PackedSession, keys: Mapping[bytes, Any]) -> list[bytes]:
    """The entries of the queue of a session."""
    return list(keys.get(b"mq:q:" + client_id, ())) if session.listed else session.entries


def read_session(redis: Any, client_id: bytes | str) -> PackedSession | None:
    """The session of a client; None: there is none."""
    text = _bytes(redis, "GET", b"mq:s:" + _named(client_id))
    return None if text is None else PackedSession.decode(text)


def stored_session(redis: Any, client_id: bytes | str) -> PackedSession:
    """The session of a client, which there is."""
    session = read_session(redis, client_id)
    assert session is not None, f"there is no session of {client_id!r}"
    return session


def stored_queue(redis: Any, client_id: bytes | str) -> list[bytes]:
    """The entries of its queue; empty: there is no session."""
    session = read_session(redis, client_id)
    if session is None or not session.listed:
        return [] if session is None else session.entries
    entries: list[bytes] = _bytes(redis, "LRANGE", b"mq:q:" + _named(client_id), 0, -1)
    return entries


def change_session(redis: Any, client_id: bytes | str, **fields: Any) -> None:
    """Set fields of a session."""
    session = stored_session(redis, client_id)
    for name, value in fields.items():
        assert hasattr(session, name), name
        setattr(session, name, value)
    redis.set(b"mq:s:" + _named(client_id), session.encode())


def _bytes(redis: Any, *command: Any) -> Any:
    """The reply of a command, which is no text."""
    return redis.execute_command(*command, **{NEVER_DECODE: True})


def _named(client_id: bytes | str) -> bytes:
    return client_id if isinstance(client_id, bytes) else client_id.encode()
