"""An HTTP endpoint that takes CloudEvents 1.0 in JSON, signed as Standard Webhooks 1.0 has it."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ..follow.settings import Section
from .connector import JournaledConnector, Outlet
from .http_target import HttpTarget
from .query import json_lines
from .refusals import halve

ONE, MANY = "application/cloudevents+json", "application/cloudevents-batch+json"
SECRET = "whsec_"


class Webhook(JournaledConnector):
    """An event for each row; an event that is sent again has the same `id`.

    Args:
        outlet: of the pipe.
        options: `url`; `events` in a request: more than one is a batch; `secret` of the signature; `headers`;
            `ca_file`.
    """

    def __init__(self, outlet: Outlet, options: Section) -> None:
        super().__init__(outlet, options)
        self._url = options.text("url")
        self._events = options.number("events", 1, 10_000, 1)
        secret = options.text("secret", "")
        ca_file = options.file("ca_file")
        headers = {"Content-Type": ONE if self._events == 1 else MANY} | options.mapping("headers")
        options.end()
        try:
            self._secret = base64.b64decode(secret[len(SECRET) :]) if secret.startswith(SECRET) else secret.encode()
        except ValueError:
            raise options.error(f"secret: behind {SECRET} comes base64") from None
        self._http = HttpTarget(self._url, headers, None if ca_file is None else str(ca_file))

    def send(self, rows: pa.Table, number: int) -> None:
        first = f"{self.outlet.pipe}-{self.outlet.journal.id}-{number}"
        events = list(self._cloud_events(rows, first))

        def post(start: int, end: int) -> None:
            self._post(events[start:end])

        def refuse(place: int, reason: str) -> None:
            self.outlet.dead.add(rows.slice(place, 1), reason)

        for start in range(0, len(events), self._events):
            halve(start, min(start + self._events, len(events)), post, refuse)
        self.outlet.dead.sync()

    def close(self) -> None:
        super().close()
        self._http.close()

    def _post(self, events: list[dict[str, Any]]) -> None:
        body = encoded(events[0] if self._events == 1 else events)
        headers = {}
        if self._secret:
            name, now = events[0]["id"], str(int(time.time()))
            signed = hmac.digest(self._secret, b".".join((name.encode(), now.encode(), body)), hashlib.sha256)
            headers = {
                "webhook-id": name,
                "webhook-timestamp": now,
                "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
            }
        self._http.post(body, headers)

    def _cloud_events(self, rows: pa.Table, first: str) -> Iterator[dict[str, Any]]:
        is_raw = "payload" in rows.column_names and pa.types.is_binary(rows.schema.field("payload").type)
        payloads = rows["payload"].to_pylist() if is_raw else None
        for place, line in enumerate(json_lines(rows.drop_columns(["payload"]) if is_raw else rows)):
            row = json.loads(line)
            event = {"specversion": "1.0", "id": f"{first}-{place}", "type": "flockmq.message"}
            event["source"] = f"/flockmq/{self.outlet.pipe}"
            if row.get("topic"):
                event["subject"] = row["topic"]
            if row.get("accepted_at"):
                event["time"] = row["accepted_at"]
            if payloads is None:
                event |= {"datacontenttype": "application/json", "data": row}
            else:
                event |= {"clientid": row["client_id"], "qos": row["qos"], "retain": row["retain"]}
                event |= data_of(payloads[place])
            yield event


def data_of(payload: bytes) -> dict[str, Any]:
    """The payload as data of an event: JSON if it is JSON, else text if it is UTF-8, else base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {"datacontenttype": "application/octet-stream", "data_base64": base64.b64encode(payload).decode()}
    try:
        found = json.loads(text, parse_constant=_refused)
        encoded(found)
    except (ValueError, RecursionError):
        return {"datacontenttype": "text/plain", "data": text}
    return {"datacontenttype": "application/json", "data": found}


def encoded(value: Any) -> bytes:
    """JSON that every receiver can read. Raises ValueError: a number is too large, or a text has half a character."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
