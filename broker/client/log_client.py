"""Reads the log of messages from a node over HTTP. Needs pyarrow, which is imported at the first request."""

import base64
import http.client
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from ..errors import FlockError, reason_of

if TYPE_CHECKING:
    import pyarrow as pa

PATH = "/api/v1/log"
POSITION, END = b"flockmq.position", b"flockmq.end"  # in the metadata of batches
TIMEOUT = 60.0  # seconds without a byte, beyond the wait that was asked for
BUFFER = 1 << 20
NEVER = "9999-01-01T00:00Z"  # no message is accepted then or later
WAIT = 30  # seconds that a follower waits for news in one request
RETRY_SECONDS = 1.0
ATTEMPTS = 5  # of `read`, at one position
Position = dict[str, str]  # by node id
Time = str | datetime


class LogRefused(FlockError):
    """The node refuses the request."""


class LogUnreachable(FlockError):
    """The node can't be reached, or has no log that it can read now: try again later."""


class MessagesMissing(FlockError):
    """Messages behind the position are gone from the log.

    Attributes:
        position: behind the gap; reading from there goes on without the missing messages.
    """

    def __init__(self, detail: str, position: Position) -> None:
        super().__init__(detail, "keep more: [analytics] log_bytes and log_seconds of the nodes")
        self.position = position


class Part(NamedTuple):
    """Messages, and the position behind them."""

    rows: "pa.Table"
    position: Position
    is_end: bool = False  # of the logs, as they were when the request began


class LogClient:
    """Reads the log.

    Args:
        url: of the node: http://HOST:PORT, or https://.
        filters: topic filters.
        since: the time, such as "10 min ago" or "2026-01-31T08:00Z", of the first messages; "earliest": all.
        until: the time before which they were accepted; None: no limit.
        username, password: of an MQTT user; None: none.
        token: of the API, or a JSON Web Token that the listeners accept; None: none.
        agent: name of the program and its version, for the audit log; empty: none.

    Raises:
        FlockError: the URL is wrong, or pyarrow is not installed.
    """

    def __init__(
        self,
        url: str,
        filters: Sequence[str] = ("#",),
        since: Time = "earliest",
        until: Time | None = None,
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        agent: str = "",
    ) -> None:
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname or place.username is not None:
            raise FlockError("expected http://HOST:PORT or https://HOST:PORT of a node, without a user in it")
        if token is not None and (username is not None or password is not None):
            raise FlockError("expected a user with a password, or a token: not both")
        try:
            import pyarrow
        except ImportError:
            raise FlockError("pyarrow is not installed", "pip install 'flockmq[log]'") from None
        self._arrow = pyarrow
        self._url = f"{url.rstrip('/')}{PATH}"
        self._filters = [("filter", each) for each in filters]
        self._times = [("since", _text(since)), *([("until", _text(until))] if until is not None else [])]
        self._headers = {"User-Agent": agent} if agent else {}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        elif username is not None or password is not None:
            pair = base64.b64encode(f"{username or ''}:{password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"

    def request(
        self,
        position: Mapping[str, str] | None,
        *,
        wait: int = 0,
        most: int | None = None,
        to: Mapping[str, str] | None = None,
    ) -> Iterator[Part]:
        """The parts of one reply.

        Args:
            position: where to begin; None: at `since`.
            wait: seconds to wait for the first message.
            most: bytes of the log, about, in this reply; None: no bound.
            to: where to end; None: at the ends of the logs.

        Raises:
            LogUnreachable: now, or before the end of the reply.
            LogRefused, MessagesMissing: before the first part.
        """
        query = [*self._times, ("wait", str(wait))]
        query += [("position", json.dumps(position))] if position is not None else []
        query += [("bytes", str(most))] if most is not None else []
        query += [("to", json.dumps(to))] if to is not None else []
        yield from self._request(query, TIMEOUT + wait)

    def ends(self) -> Position:
        """The present ends of the logs.

        Raises:
            LogUnreachable, LogRefused: the node does not send them.
        """
        *_, last = self._request([("since", NEVER)], TIMEOUT)
        return last.position

    def _request(self, query: list[tuple[str, str]], timeout: float) -> Iterator[Part]:
        request = Request(f"{self._url}?{urlencode([*self._filters, *query])}", headers=self._headers)
        try:
            with urlopen(request, timeout=timeout) as reply:
                yield from self._parts(reply)
        except HTTPError as error:
            raise _refusal(error) from None
        except (OSError, http.client.HTTPException, self._arrow.ArrowInvalid) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise LogUnreachable(f"the log can't be read from {self._url}: {_reason(reason)}") from None

    def _parts(self, reply: Any) -> Iterator[Part]:
        stream = self._arrow.ipc.open_stream(io.BufferedReader(reply, BUFFER))
        batches: list[Any] = []  # that no position follows yet
        while True:
            try:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
            except StopIteration:
                raise http.client.IncompleteRead(b"") from None  # a reply ends with a batch that says so
            batches.append(batch)
            if metadata is None or POSITION not in metadata:
                continue
            rows = self._arrow.Table.from_batches([each for each in batches if len(each)], stream.schema)
            end = metadata.get(END) if END in metadata else None
            yield Part(rows, json.loads(metadata[POSITION]), end == b"true")
            batches = []
            if end is not None:
                return

    def read(self) -> "pa.Table":
        """All messages that are in the log now.

        Raises:
            LogUnreachable, LogRefused: the log can't be read.
            MessagesMissing: some were deleted while the log was read.
        """
        tables: list[Any] = []
        position: Position | None = None
        attempts = 0
        while True:
            try:
                for part in self.request(position):
                    tables.append(part.rows)
                    position, attempts = part.position, 0
                    if part.is_end:
                        return self._arrow.concat_tables(tables)
            except LogUnreachable:
                attempts += 1
                if position is None or attempts == ATTEMPTS:
                    raise
                time.sleep(RETRY_SECONDS)

    def follow(self, position: Mapping[str, str] | None = None) -> Iterator[Part]:
        """Messages as they are logged, for ever. A part without rows has a position that is news, too.

        Raises:
            LogUnreachable: the first request can't reach the node; later requests are repeated.
            LogRefused: the node refuses a request.
            MessagesMissing: messages were deleted before they were read.
        """
        reached: Position | None = None if position is None else dict(position)
        is_begun = False
        while True:
            try:
                for part in self.request(reached, wait=WAIT):
                    is_begun = True
                    if part.rows.num_rows or part.position != reached:
                        reached = part.position
                        yield part
            except LogUnreachable:
                if not is_begun:
                    raise
                time.sleep(RETRY_SECONDS)


def _refusal(error: HTTPError) -> FlockError:
    """The error that the problem in a reply stands for."""
    with error:
        try:
            problem = json.loads(error.read())
            detail = str(problem["detail"])
        except (ValueError, TypeError, KeyError, OSError, http.client.HTTPException):
            return LogUnreachable(f"the reply has status {error.code}, and is not of a node: {error.reason}")
    if error.code == http.client.GONE and isinstance(problem.get("position"), dict):
        return MessagesMissing(detail, problem["position"])
    if error.code in (http.client.SERVICE_UNAVAILABLE, http.client.TOO_MANY_REQUESTS):
        return LogUnreachable(f"the node has no log for now: {detail}")
    return LogRefused(f"the node refuses to send its log ({error.code}): {detail}")


def _reason(error: object) -> str:
    if isinstance(error, OSError):
        return reason_of(error)
    return "the reply was cut off" if isinstance(error, http.client.HTTPException) else str(error)


def _text(moment: Time) -> str:
    """A time as the node reads it; without a zone it is local."""
    return moment if isinstance(moment, str) else moment.astimezone().isoformat()
