"""The lock of a checkpoint: a second job with it would write the same versions, and remove the files of the first.

The lock is a key in Redis, since a checkpoint may be in a file system without locks. It names its holder, which renews
it. It expires `SECONDS` after the last renewal, so a job that was killed on another machine delays the next one by as
much. On the same machine the next job finds that the process is gone, and takes the lock at once.
"""

import os
import secrets
import socket
import threading
import time

from ....broker import logs
from ....broker.errors import FlockError
from ...redis.clients import RedisAddress
from ..errors import RedisAway
from ..log.connection import Connection

SECONDS = 30.0  # that the lock is held without a renewal
PATIENCE = 20.0  # seconds of retries while Redis does not reply
LOOK_SECONDS = 1.0  # between two looks at a lock that another job holds

# Keys: the lock. Arguments: the holder, milliseconds, a former holder that is no more. Returns the holder and its rest.
HOLD = """
local holder = redis.call('GET', KEYS[1])
if not holder or holder == ARGV[1] or holder == ARGV[3] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {ARGV[1], tonumber(ARGV[2])}
end
return {holder, redis.call('PTTL', KEYS[1])}
"""
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 0"

log = logs.get("flockmq.analytics")


class CheckpointLock:
    """The lock of one job.

    Args:
        address: of the Redis that has the logs.
        seconds: that the lock is held without a renewal.
    """

    def __init__(self, address: RedisAddress, seconds: float = SECONDS) -> None:
        self._keys = address.keys
        self._seconds = seconds
        self._connection = Connection(address, PATIENCE)
        self._own = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
        self._key = b""
        self._directory = ""
        self._guard = threading.Lock()  # of the connection
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, job: str, directory: str) -> None:
        """Take the lock of a job, and renew it from now on. Waits for the lock of a job that was killed elsewhere.

        Args:
            job: its id.
            directory: its checkpoint, for messages.

        Raises:
            FlockError: another job has it.
            RedisAway: Redis does not reply.
        """
        self._key, self._directory = self._keys.analytics_lock(job.encode()), directory
        rest = float("inf")
        while True:
            holder, left = self._hold()
            if holder == self._own:
                break
            if _is_gone(holder):
                self._hold(holder)
                continue
            if left > rest or left < 0:  # it was renewed, or does not expire
                raise self._taken(holder)
            if rest == float("inf"):
                log.info(
                    "waiting for the lock of a job that has ended, or runs", checkpoint=directory, job=_shown(holder)
                )
            rest = left
            time.sleep(LOOK_SECONDS)
        self._thread = threading.Thread(target=self._renew, name="flockmq-checkpoint-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that the job still has the lock, before it commits.

        Raises:
            FlockError: another job has it: Redis was away, or this process was stopped, for longer than the lock lasts.
            RedisAway: Redis does not reply.
        """
        holder, _ = self._hold()
        if holder != self._own:
            raise self._taken(holder)

    def close(self) -> None:
        """Give the lock back, if the job has it. Harmless if not."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
            try:
                with self._guard:
                    self._connection.patience = 0
                    self._connection.ask("EVAL", RELEASE, 1, self._key, self._own)
            except RedisAway as error:
                log.warning("the lock of the checkpoint expires by itself", reason=error)
        self._connection.close()

    def _hold(self, former: str = "") -> tuple[str, int]:
        """Take or renew the lock if it is free, this job's, or a former holder's: its holder, and its rest in ms."""
        with self._guard:
            reply = self._connection.ask("EVAL", HOLD, 1, self._key, self._own, round(self._seconds * 1000), former)
        return reply[0].decode(errors="replace"), int(reply[1])

    def _renew(self) -> None:
        while not self._ends.wait(self._seconds / 3):
            try:
                self._hold()  # `check` finds a lock that another job has
            except RedisAway as error:
                log.warning("the lock of the checkpoint is not renewed", reason=error)

    def _taken(self, holder: str) -> FlockError:
        return FlockError(
            f"another job has the checkpoint {self._directory}: {_shown(holder)}",
            "stop that one, or use another --checkpoint and --output",
        )


def _shown(holder: str) -> str:
    host, _, rest = holder.partition(" ")
    return f"process {rest.partition(' ')[0]} on {host}"


def _is_gone(holder: str) -> bool:
    """Whether the holder ran on this machine, and is no more. In a container that was restarted it had this id."""
    host, _, rest = holder.partition(" ")
    process = rest.partition(" ")[0]
    if host != socket.gethostname() or not process.isdigit():
        return False
    if int(process) == os.getpid():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
