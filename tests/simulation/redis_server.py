"""The Redis of a simulation: a process with connections, pub/sub and the function library, over the model of its data.

It is append-only: all that it has executed is there after its restart, unless a fault takes the last of it. It can be
killed and started, stand still, refuse writes, and be slow or cut off (network.py). It may have a replica, which is a
time: the replica has the data of then.
"""

from collections.abc import Callable
from typing import Any

from flockmq._speedups.base.msgpack import unpack
from flockmq.cluster.redis.calls import CALLS, NOTIFICATIONS
from flockmq.cluster.redis.kinds import Outcomes
from tests.simulation.network import Connection
from tests.simulation.redis_client import Client, LastCommand, Watcher
from tests.simulation.redis_lua import Library
from tests.simulation.redis_types import OK, Keyspace, RedisError, Reply, Status
from tests.simulation.resp import encode, encode_push
from tests.simulation.world import FIRST_REDIS, FOREVER, MILLI, World

INFO = (
    b"redis_mode:standalone\r\nrole:master\r\nconnected_slaves:0\r\naof_enabled:1\r\n"
    b"aof_last_rewrite_time_sec:0\r\naof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\nmaxmemory:0\r\n"
    b"maxmemory_policy:noeviction\r\naof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\n"
)
SKIP = [b"CLIENT", b"REPLY", b"SKIP"]
BLOCKED = object()  # the reply comes later
REPLICA_LAG = 2 * MILLI  # until a replica has what Redis has executed, and has reported it
REPLICA_SLOW = 80 * MILLI
# Refusals of calls, and the flag of functions that are not refused.
REFUSALS = {
    "memory": (
        "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        b"allow-oom",
    ),
    "disk": ("MISCONF Errors writing to the AOF file: No space left on device", b"no-writes"),
    "replicas": ("NOREPLICAS Not enough good replicas to write.", b"no-writes"),
}
MAPS = (b"HELLO", b"HGETALL", b"CONFIG")  # commands whose reply is a map in RESP3
NOTIFICATION = Outcomes(NOTIFICATIONS)


class RedisServer:
    """The process.

    Args:
        world: of the run.
        host: its name.
        late_pushes: whether pushes to the caller of a command follow the reply: so in Redis 7.2 and later, and Valkey.
        change: changes the code of the library before it is loaded: a mutation.
    """

    def __init__(
        self, world: World, host: str, late_pushes: bool = False, change: Callable[[bytes], bytes] = bytes
    ) -> None:
        self.host = host
        self._late_pushes = late_pushes
        self._caller: Client | None = None  # of the command that is executed, if its pushes wait ...
        self._pushes = bytearray()  # ... here
        self.watchers: dict[bytes, Watcher] = {}  # by the prefix of their cluster
        self.first_fault = FOREVER  # nanosecond of the first fault of a cluster whose keys it has
        self._world = world
        self._change = change
        self._kept: tuple[dict[bytes, Any], dict[bytes, float]] | None = None  # the data that outlive it; None: all
        self._kept_at = 0
        self.deaths: list[int] = []  # nanoseconds at which it was killed
        self._refusal = ""  # a key of REFUSALS
        self._last: LastCommand | None = None  # of `end_with`
        self._keyspace = Keyspace(world.rng)
        self._library: Library | None = None
        self._code = b""
        self._count = 0
        self._frozen: list[tuple[Client, bytes]] | None = None  # input that waits; empty: the end of the connection
        self.clients: dict[int, Client] = {}
        self.executed = 0
        self.running = True

    @property
    def keys(self) -> dict[bytes, Any]:
        """All keys and their values."""
        return self._keyspace.keys

    # ---- faults ----

    def kill(self, *, silently: bool = False) -> None:
        """kill -9: connections end; the data stays, but for changes after `keep`.

        Args:
            silently: its machine has died, so connections to it stay open without a reply.
        """
        self._world.story.tell(self._world.now, self.host, "is killed")
        self.deaths.append(self._world.now)
        self.running = False
        self._frozen = None
        self._refusal = ""
        for client in list(self.clients.values()):
            client.flush()
            client.direction.lose_some()
            if silently:
                client.input.discard()
            else:
                client.close()
        self.clients.clear()
        if self._kept is not None:
            kept, self._kept = self._kept, None
            for watcher in self.watchers.values():
                watcher.lost(self._kept_at, kept[0])
            self._keyspace.restore(kept)

    def start(self) -> None:
        """Start after `kill`, with the data of before, or of its replica."""
        self._world.story.tell(self._world.now, self.host, "starts")
        self.running = True
        if self._library is not None:  # variables of Lua end with the process
            self._load()

    def keep(self) -> None:
        """From now on nothing outlives the process: its disk is behind, and so is its replica."""
        if self.running and self._kept is None:
            self._world.story.tell(self._world.now, self.host, "keeps nothing from now on")
            self._kept, self._kept_at = self._keyspace.copied(), self._world.now

    def keep_nothing(self) -> None:
        """Nothing at all outlives the process, not even the functions."""
        self._kept, self._kept_at = ({}, {}), -1
        self._unload()

    def refuse(self, why: str) -> None:
        """Refuse calls that write, for a reason of `REFUSALS`; empty: accept them again."""
        self._world.story.tell(self._world.now, self.host, f"refuses writes: {why}" if why else "accepts writes again")
        self._refusal = why

    def freeze(self) -> None:
        """Stand still."""
        self._world.story.tell(self._world.now, self.host, "stands still")
        if self._frozen is None:
            self._frozen = []

    def thaw(self) -> None:
        """Go on."""
        self._world.story.tell(self._world.now, self.host, "goes on")
        waiting, self._frozen = self._frozen, None
        for client, data in waiting or ():
            self.received(client, data)

    def end_with(self, last: LastCommand | None) -> None:
        """End a connection with a command; None: end none."""
        self._last = last

    def _end(self, client: Client, last: LastCommand) -> None:
        self._last = None
        if not last.ends:
            last.then()
            return
        self._world.story.tell(self._world.now, self.host, f"ends the link of {client.name.decode()}")
        del self.clients[client.number]
        if last.replies:
            client.flush()
            client.leave()
        else:
            client.output.clear()
            client.close()
        last.then()

    # ---- connections ----

    def accept(self, connection: Connection) -> Client:
        """A client has connected."""
        self._count += 1
        client = self.clients[self._count] = Client(self, self._count, connection)
        return client

    def received(self, client: Client, data: bytes) -> None:
        """A client has sent bytes."""
        if client.number not in self.clients:
            return
        if self._frozen is not None:
            self._frozen.append((client, data))
            return
        if not data:
            del self.clients[client.number]
            return
        client.feed(data)
        for each in list(self.clients.values()):
            each.flush()

    def ended(self, client: Client, *, reset: bool) -> None:
        """A client has closed its connection; after a reset nothing that waits is read any more."""
        if self._frozen is not None and not reset:
            self._frozen.append((client, b""))
        else:
            self.clients.pop(client.number, None)

    def reset(self, client: Client) -> None:
        """The network ends a connection; some of the replies under way are lost."""
        self.clients.pop(client.number)
        client.direction.lose_some()
        client.close()

    def execute(self, client: Client, command: list[bytes]) -> None:
        """Execute a command, and write its reply."""
        last = self._last
        is_last = last is not None and last.is_reached(client.name, command)
        if last is None or not is_last or last.executes:
            self.executed += 1
            if self.host != FIRST_REDIS:
                self._world.act_as(self.host)
            self._execute(client, command)
            if self.host != FIRST_REDIS:
                self._world.act_as(FIRST_REDIS)
        if last is not None and is_last and client.number in self.clients:
            self._end(client, last)

    def _execute(self, client: Client, command: list[bytes]) -> None:
        name = command[0].upper()
        if name in (b"SUBSCRIBE", b"SSUBSCRIBE"):
            for channel in command[1:]:
                client.channels[channel] = None
                client.output += encode_push(b"subscribe", channel, len(client.channels))
            return
        self._caller = client if self._late_pushes else None
        try:
            reply = self._reply(client, name, command[1:])
        except RedisError as error:
            reply = error
        self._world.story.detail(
            self._world.now, self.host, lambda: f"{client.name.decode()}: {_shown(command, reply)}"
        )
        if reply is BLOCKED:
            return
        if b"flockmq_claims" in command[:2]:
            client.claims += [(command[3], command[4], client_id) for client_id, *_ in unpack(command[6])]
        if [word.upper() for word in command] == SKIP:
            client.skips = True
        elif client.skips:
            client.skips = False
        else:
            encode(client.output, reply, client.version, is_map=name in MAPS)
        client.output += self._pushes
        self._pushes.clear()

    def _reply(self, client: Client, name: bytes, arguments: list[bytes]) -> Reply:
        if name in (b"FCALL", b"FCALL_RO"):
            return self._call(arguments)
        own = getattr(self, f"_{name.decode().lower()}", None)
        if own is not None:
            return own(client, *arguments)
        return self._keyspace.execute(name, arguments)

    def _call(self, arguments: list[bytes]) -> Reply:
        if self._library is None:
            raise RedisError("ERR Function not found")
        if self._refusal:
            text, allowed = REFUSALS[self._refusal]
            if allowed not in self._library.flags.get(arguments[0], b""):
                raise RedisError(text)
        count = int(arguments[1])
        call, watcher = CALLS[arguments[0].decode().removeprefix("flockmq_")], self.watchers.get(arguments[2 + count])
        if watcher is None:
            raise RuntimeError(f"a node calls {arguments[0].decode()} at {self.host}, which has no keys of its cluster")
        if problem := call.problem(arguments[2 + count :]):
            raise RuntimeError(f"a node calls {arguments[0].decode()} with wrong arguments: {problem}")
        watcher.calling(arguments[0], arguments[2 + count :])
        try:
            reply = self._library.call(arguments[0], arguments[2 : 2 + count], arguments[2 + count :])
        except RedisError as error:
            if str(error).startswith('ERR [string "'):  # Lua's own error: no node may cause one
                raise RuntimeError(f"{arguments[0].decode()} has failed: {error}") from error
            raise
        if self._library.failure:
            raise RuntimeError(f"the model of Redis has failed: {self._library.failure}")
        if problem := call.reply.problem(reply):
            raise RuntimeError(f"{arguments[0].decode()} has a wrong reply: {problem}")
        watcher.called(arguments[0], reply)
        return reply

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to all subscribers of a channel."""
        if message[:1] >= b"\x90" and (problem := NOTIFICATION.problem(unpack(message))):
            raise RuntimeError(f"a wrong message between nodes: {problem}")
        found = [client for client in self.clients.values() if channel in client.channels]
        for client in found:
            output = self._pushes if client is self._caller else client.output
            output += encode_push(b"message", channel, message)
        return len(found)

    # ---- commands of connections and of the server ----

    def _hello(self, client: Client, protocol: bytes = b"2", *options: bytes) -> Reply:
        client.version = int(protocol)
        if b"SETNAME" in options:
            client.name = options[options.index(b"SETNAME") + 1]
        version = b"7.2.0" if self._late_pushes else b"7.0.15"
        return [b"server", b"redis", b"version", version, b"proto", client.version, b"id", client.number]

    def _ping(self, client: Client) -> Reply:
        return Status(b"PONG")

    def _select(self, client: Client, number: bytes) -> Reply:
        return OK

    def _wait(self, client: Client, replicas: bytes, milliseconds: bytes) -> Reply:
        """WAIT: reply when the replica has all that was executed, or 0 after the time."""
        client.waits = True
        world = self._world
        lag = min(world.delay(REPLICA_LAG, REPLICA_SLOW), int(milliseconds) * MILLI)
        if self._kept is None:
            world.after(lag, self._waited, client, int(milliseconds) * MILLI - lag)
        else:
            world.after(int(milliseconds) * MILLI, self._end_wait, client, 0)
        return BLOCKED

    def _waited(self, client: Client, left: int) -> None:
        if self._kept is not None:  # the replica may have it, but does not report that any more
            self._world.after(left, self._end_wait, client, 0)
        else:
            self._end_wait(client, 1)

    def _end_wait(self, client: Client, count: int) -> None:
        if client.number not in self.clients:
            return
        if self._frozen is not None:
            self._world.after(50 * MILLI, self._end_wait, client, count)
            return
        client.waits = False
        encode(client.output, count, client.version)
        client.go_on()
        for each in list(self.clients.values()):
            each.flush()

    def _publish(self, client: Client, channel: bytes, message: bytes) -> Reply:
        return self.publish(channel, message)

    def _info(self, client: Client, *sections: bytes) -> Reply:
        return INFO

    def _config(self, client: Client, action: bytes, *names: bytes) -> Reply:
        settings = {b"appendfsync": b"everysec", b"save": b"", b"no-appendfsync-on-rewrite": b"no"}
        return [part for name in names if name in settings for part in (name, settings[name])]

    def _client(self, client: Client, action: bytes, *arguments: bytes) -> Reply:
        if action.upper() == b"LIST":
            found = [self.clients[number] for each in arguments[1:] if (number := int(each)) in self.clients]
            return b"".join(b"id=%d name=%s db=0\n" % (each.number, each.name) for each in found)
        if action.upper() == b"KILL":
            other = self.clients.pop(int(arguments[1]), None)
            if other is not None:
                other.close()
            return int(other is not None)
        return OK

    def _function(self, client: Client, action: bytes, *arguments: bytes) -> Reply:
        if action.upper() == b"LIST":
            if self._library is None:
                return []
            return [[b"library_name", b"flockmq1", b"engine", b"LUA", b"functions", [], b"library_code", self._code]]
        self._code = arguments[-1]
        self._load()
        return b"flockmq1"

    # ---- the function library ----

    def _load(self) -> None:
        self._unload()
        self._library = Library(self._change(self._code), self._keyspace, self.publish)

    def _unload(self) -> None:
        if self._library is not None:
            self._library.close()
            self._library = None

    def close(self) -> None:
        """The run is over."""
        self._unload()


def _shown(command: list[bytes], reply: Any) -> str:
    words = [word.decode("latin-1") for word in command]
    if words[0] == "FCALL":
        words = [words[1], *words[4:]]
    text = " ".join(word if len(word) <= 120 else f"{word[:120]}..." for word in words)
    return f"{text!r} -> {repr(reply)[:160]}"
