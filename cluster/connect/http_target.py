"""A target behind HTTP: one connection that stays open, and the meaning of its replies."""

import logging
from collections.abc import Callable, Mapping

import urllib3
from urllib3.util import Retry, Timeout

from ...broker import logs
from ...broker.errors import ConfigError
from ..follow.target import TargetError
from ..tables.table import told
from .refusals import Refused

ATTEMPTS = 5  # of a request, before the whole batch waits
LONGEST_PAUSE = 30.0  # seconds
LATER = (408, 425, 429, 502, 503, 504)
REFUSED = (400, 409, 410, 413, 415, 422)
REPLY_CHARACTERS = 300  # of an error that are shown

log = logs.get("flockmq.connect")


class Retries(Retry):
    """The attempts of a request. The pause that a server asks for is logged, and bounded: the batch waits then."""

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, LONGEST_PAUSE)

    def sleep_for_retry(self, response: urllib3.BaseHTTPResponse) -> bool:
        if pause := self.get_retry_after(response):
            log.warning("the target asks for a pause", status=response.status, seconds=round(pause))
        return super().sleep_for_retry(response)


class HttpTarget:
    """Sends requests.

    Args:
        url: of http or https.
        headers: of each request.
        ca_file: of certificates to trust; None: the certificates of the system.
        refuses: whether a status and the text of an error mean that the server would refuse the same body again.

    Raises:
        ConfigError: the URL is wrong.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        ca_file: str | None = None,
        refuses: Callable[[int, str], bool] = lambda status, _: status in REFUSED,
    ) -> None:
        self._refuses = refuses
        found = urllib3.util.parse_url(url)
        if found.scheme not in ("http", "https") or not found.host:
            raise ConfigError(f"{url!r} is no URL of http or https")
        self._url = url
        self._shown = f"{found.scheme}://{found.netloc}{found.path or ''}"  # a query may have a password
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # its lines have the query
        retries = Retries(
            ATTEMPTS,
            connect=2,
            backoff_factor=0.1,
            status_forcelist=LATER,
            allowed_methods=None,
            raise_on_status=False,
            redirect=0,
        )
        self._pool = urllib3.PoolManager(
            num_pools=1, headers=dict(headers), retries=retries, timeout=Timeout(10, 60), ca_certs=ca_file
        )

    def post(self, body: bytes, headers: Mapping[str, str] | None = None, query: str = "") -> bytes:
        """Send a request. Returns the body of the reply.

        Raises:
            Refused: the server does not take this body.
            TargetError: it can't be reached, or refuses every body.
        """
        url = self._url + query
        try:
            reply = self._pool.request("POST", url, body=body, headers={**self._pool.headers, **(headers or {})})
        except urllib3.exceptions.MaxRetryError as error:  # its text has the query
            raise TargetError(f"{self._shown}: {told(error.reason or ValueError('no reply'))}") from None
        except urllib3.exceptions.HTTPError as error:
            raise TargetError(f"{self._shown}: {told(error)}") from None
        if 200 <= reply.status < 300:
            return reply.data
        text = f"{reply.status} {reply.reason or ''}".strip()
        if words := reply.data[:REPLY_CHARACTERS].decode(errors="replace").strip():
            text += f": {words.splitlines()[0]}"
        if self._refuses(reply.status, text):
            raise Refused(text)
        raise TargetError(f"{self._shown}: {text}")

    def close(self) -> None:
        """Close the connection."""
        self._pool.clear()
