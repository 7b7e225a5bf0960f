"""The analytics' connection to Redis: some commands at a time, retried while Redis is away (reads are idempotent)."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from ...redis.clients import RedisAddress
from ..errors import RedisAway

TIMEOUT = 20.0  # seconds for a connection, and for a reply of some megabytes
PAUSE = 0.25  # seconds between attempts
Command = tuple[Any, ...]
# Temporary errors; without memory Redis refuses all writes until nodes have trimmed some of their logs.
AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.BusyLoadingError,
    redis.OutOfMemoryError,
    OSError,
)


class Connection:
    """A connection to Redis, made at the first command.

    Args:
        address: where Redis is.
        patience: seconds of retries while Redis does not reply, as when Sentinel promotes another master.
    """

    def __init__(self, address: RedisAddress, patience: float = 0.0) -> None:
        self.address = address
        self.patience = patience
        self._client = address.client(TIMEOUT)

    def ask(self, *command: Any) -> Any:
        """The reply to a command; see `ask_all`."""
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to some idempotent commands; None for a key that XINFO does not find.

        Raises:
            RedisAway: no reply within `patience`, or an error; the text contains no password.
        """
        end = time.monotonic() + self.patience
        while True:
            try:
                return [self._checked(reply) for reply in self._send(commands)]
            except AWAY as error:
                if isinstance(error, redis.AuthenticationError) or time.monotonic() > end:
                    raise RedisAway(f"can't use Redis at {self.address}: {error}") from None
                time.sleep(PAUSE)

    def change(self, key: bytes, name: bytes, edit: Callable[[bytes | None], bytes]) -> None:
        """Change a field of a hash; retries if another client changed the hash, or Redis was away."""
        end = time.monotonic() + self.patience
        while True:
            try:
                with self._client.pipeline() as pipeline:
                    pipeline.watch(key)  # type: ignore[no-untyped-call]
                    value = edit(pipeline.hget(key, name))  # type: ignore[arg-type]
                    pipeline.multi()
                    pipeline.hset(key, name, value)
                    pipeline.execute()
                    return
            except redis.WatchError:
                continue
            except redis.RedisError as error:
                if not isinstance(error, AWAY) or isinstance(error, redis.AuthenticationError):
                    raise RedisAway(f"Redis at {self.address} refuses: {error}") from None
                if time.monotonic() > end:
                    raise RedisAway(f"can't use Redis at {self.address}: {error}") from None
                time.sleep(PAUSE)

    def close(self) -> None:
        """Close the connection. Harmless if it is closed already."""
        self._client.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        return pipeline.execute(raise_on_error=False)

    def _checked(self, reply: Any) -> Any:
        if isinstance(reply, AWAY):
            raise reply
        if isinstance(reply, redis.RedisError):
            if "no such key" in str(reply):
                return None
            raise RedisAway(f"Redis at {self.address} refuses: {reply}")
        return reply
