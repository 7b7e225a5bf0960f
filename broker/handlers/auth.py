"""AUTH, and CONNECT with an authentication method: authentication in steps, before CONNACK and again later [5: 4.12].

A connection has one exchange at a time. Before CONNACK the client may send nothing else [5: MQTT-3.1.2-30]; later its
other packets go on. Nothing of a session is claimed before the exchange has succeeded.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Auth, Connect
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.close_reasons import CloseReason
from ..._speedups.session.counters import AUTH_FAILURES
from .. import logs
from ..auth.authenticator import Authenticator, Credentials, Exchange, Step, Verdict
from ..auth.connected_users import ConnectedUsers
from ..core.data_plane import DataPlane

MAX_STEPS = 8  # packets of a client in one exchange, CONNECT included
MAX_BYTES = 64 << 10  # of their authentication data together

FAILED = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the authenticator failed")
UNKNOWN = Verdict(ReasonCode.BAD_AUTHENTICATION_METHOD, reason="its authentication method is not known here")
CHANGED = Verdict(
    ReasonCode.BAD_AUTHENTICATION_METHOD, reason="it changed its authentication method [5: MQTT-4.12.0-5]"
)
TOO_MANY_STEPS = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its authentication has too many steps")
TOO_MUCH_DATA = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its authentication has too much data")
WRONG = (ReasonCode.BAD_USERNAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED)
# Reason codes that only CONNACK can carry, and the codes of DISCONNECT in their place.
IN_DISCONNECT = {
    ReasonCode.BAD_USERNAME_OR_PASSWORD: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_BUSY,
}

log = logs.get("flockmq.connect")


class Authentication:
    """The authentication method of a connection, and the exchange that is under way.

    Args:
        method: named in CONNECT, in effect for the whole connection.
        credentials: of CONNECT.
    """

    __slots__ = ("credentials", "data", "deadline", "done", "exchange", "is_busy", "method", "size", "steps")

    def __init__(self, method: str, credentials: Credentials) -> None:
        self.method = method
        self.credentials = credentials
        self.data = b""  # for the client that was accepted
        self.exchange: Exchange | None = None  # None: none is under way
        self.done: Callable[[Verdict], object] = _nothing

    def begin(self, exchange: Exchange, seconds: float, done: Callable[[Verdict], object]) -> None:
        """An exchange begins; `done` is called with its verdict, unless the connection ends before."""
        self.exchange = exchange
        self.done = done
        self.deadline = time.monotonic() + seconds
        self.steps = self.size = 0
        self.is_busy = False  # a step is waited for

    def end(self, verdict: Verdict) -> None:
        """The exchange ends."""
        self.exchange = None
        self.is_busy = False
        self.data = verdict.data
        done, self.done = self.done, _nothing  # it has the connection, which has this
        done(verdict)


@contextlib.contextmanager
def faults_logged(client_id: str) -> Iterator[None]:
    """Log an exception of the authenticator, which may be a hook's; the verdict is then FAILED."""
    try:
        yield
    except Exception:
        log.exception("the authenticator failed", client_id=client_id)


def _nothing(verdict: Verdict) -> None:
    """No exchange is under way."""


class AuthHandler:
    """Authenticates clients, in one step or in several.

    Args:
        data_plane: of the node.
        authenticator: decides over credentials.
        connected_users: gets the new rights of clients that authenticate again.
    """

    def __init__(self, data_plane: DataPlane, authenticator: Authenticator, connected_users: ConnectedUsers) -> None:
        self._data_plane = data_plane
        self._authenticator = authenticator
        self._connected_users = connected_users

    # ---- CONNECT ----

    def authenticate(self, connection: Connection, packet: Connect, decide: Callable[[Verdict], object]) -> None:
        """Authenticate the client of a CONNECT; `decide` is called at once or later, unless the connection ends."""
        credentials = Credentials(
            packet.client_id,
            packet.username,
            packet.password,
            connection.address,
            packet.protocol_level,
            connection.listener,
            connection.certificate,
            connection.server_name or "",
        )
        method = packet.properties.get("authentication_method")
        if method is not None:
            connection.authentication = Authentication(method, replace(credentials, password=None))
            self._begin(connection, connection.authentication, packet.properties, decide)
            return
        answer: Verdict | Awaitable[Verdict]
        try:
            answer = self._authenticator.authenticate(credentials)
        except Exception:
            log.exception("the authenticator failed", client_id=packet.client_id)
            answer = FAILED
        if isinstance(answer, Verdict):
            decide(answer)
        else:
            self._data_plane.run(self._wait(connection, credentials, answer, decide))

    async def _wait(
        self,
        connection: Connection,
        credentials: Credentials,
        answer: Awaitable[Verdict],
        decide: Callable[[Verdict], object],
    ) -> None:
        verdict = FAILED
        with faults_logged(credentials.client_id):
            verdict = await answer
        if not connection.closed:
            decide(verdict)
            self._data_plane.end_turn()

    # ---- AUTH ----

    def handle(self, connection: Connection, packet: Auth) -> None:
        """Take a client's AUTH: a step of the exchange, or the first one of another exchange."""
        found: Authentication | None = connection.authentication
        method = packet.properties.get("authentication_method")
        if found is None:
            connection.reject(close_reasons.NO_METHOD)
        elif method is None:
            connection.reject(close_reasons.AUTH_WITHOUT_METHOD)
        elif packet.reason_code == ReasonCode.RE_AUTHENTICATE:
            self._again(connection, found, packet)
        elif packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:
            connection.reject(close_reasons.AUTH_CODE)
        elif found.exchange is None or found.is_busy:
            connection.reject(close_reasons.AUTH_UNASKED)
        elif method != found.method:
            found.end(CHANGED)
        elif connection.session is not None and time.monotonic() > found.deadline:
            connection.close(close_reasons.RE_AUTH_TIMEOUT)
        else:
            exchange = found.exchange
            self._step(connection, found, packet.properties, exchange.step)

    def _again(self, connection: Connection, found: Authentication, packet: Auth) -> None:
        """Authenticate a connected client again [5: MQTT-4.12.1-1]."""
        if connection.session is None:
            connection.reject(close_reasons.RE_AUTH_EARLY)
        elif found.exchange is not None:
            connection.reject(close_reasons.RE_AUTH_TWICE)
        elif packet.properties["authentication_method"] != found.method:
            connection.reject(close_reasons.RE_AUTH_METHOD)
        else:
            self._begin(connection, found, packet.properties, lambda verdict: self._renew(connection, found, verdict))

    def _begin(
        self,
        connection: Connection,
        found: Authentication,
        properties: dict[str, object],
        done: Callable[[Verdict], object],
    ) -> None:
        exchange = self._authenticator.exchange(found.credentials, found.method)
        if exchange is None:
            found.done = done
            found.end(UNKNOWN)
            return
        found.begin(exchange, self._data_plane.config.limits.connect_timeout, done)
        self._step(connection, found, properties, lambda data: exchange.start(found.credentials, data))

    def _step(
        self,
        connection: Connection,
        found: Authentication,
        properties: dict[str, object],
        ask: Callable[[bytes], Step | Awaitable[Step]],
    ) -> None:
        data = properties.get("authentication_data", b"")
        assert isinstance(data, bytes)
        found.steps += 1
        found.size += len(data)
        if found.steps > MAX_STEPS:
            found.end(TOO_MANY_STEPS)
        elif found.size > MAX_BYTES:
            found.end(TOO_MUCH_DATA)
        else:
            answer: Step | Awaitable[Step] = FAILED
            with faults_logged(found.credentials.client_id):
                answer = ask(data)
            if isinstance(answer, Awaitable):
                found.is_busy = True
                self._data_plane.run(self._wait_for_step(connection, found, answer))
            else:
                self._go_on(connection, found, answer)

    async def _wait_for_step(self, connection: Connection, found: Authentication, answer: Awaitable[Step]) -> None:
        step: Step = FAILED
        with faults_logged(found.credentials.client_id):
            step = await answer
        if not connection.closed and connection.fault is None:
            self._go_on(connection, found, step)
            self._data_plane.end_turn()

    def _go_on(self, connection: Connection, found: Authentication, step: Step) -> None:
        found.is_busy = False
        if isinstance(step, Verdict):
            found.end(step)
            return
        if not self._send(connection, found, ReasonCode.CONTINUE_AUTHENTICATION, step.data):
            return
        if connection.session is None:
            connection.authenticate()
            connection.proceed()

    def _send(self, connection: Connection, found: Authentication, code: ReasonCode, data: bytes) -> bool:
        """Send AUTH [5: MQTT-4.12.0-2]; False: the client takes no packet of that size, and the connection ends.

        It has no reason string and no user property, which could be too much [5: MQTT-3.15.2-2] [5: MQTT-3.15.2-3].
        """
        properties: dict[str, object] = {"authentication_method": found.method}
        if data:
            properties["authentication_data"] = data
        auth = encode(Auth(code, properties), 5)
        if not connection.takes(auth, close_reasons.AUTH_TOO_LARGE):
            return False
        connection.send(auth)
        return True

    def _renew(self, connection: Connection, found: Authentication, verdict: Verdict) -> None:
        """A connected client has authenticated again, or has failed to [5: MQTT-4.12.1-2]."""
        self._data_plane.turn.count(AUTH_FAILURES, verdict.code in WRONG)
        if verdict.code != ReasonCode.ACCEPTED:
            client_id, address = found.credentials.client_id, connection.address
            log.info("authenticating again failed", client_id=client_id, address=address, reason=verdict.reason)
            code = IN_DISCONNECT.get(verdict.code, verdict.code)
            connection.close(CloseReason(code, "authenticating again failed [5: MQTT-4.12.1-2]"))
        elif self._connected_users.on_authenticated_again(connection, verdict.identity):
            self._send(connection, found, ReasonCode.SUCCESS, verdict.data)
        else:
            connection.close(close_reasons.ANOTHER_USER)
