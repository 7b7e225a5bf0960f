"""JSON Schema: payloads are JSON, and jsonschema-rs judges them."""

import json
from typing import Any

from .payload_schema import Misfit, PayloadSchema, library

MAX_REASON = 200  # characters
WHITESPACE = " \t\n\r"  # of JSON


class JsonSchema(PayloadSchema):
    """A JSON Schema of any draft.

    Args:
        text: of the schema.

    `prepare` raises ValueError: it is no JSON Schema, or refers to one that is not in the file.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._validator: Any = None  # made when it is needed: columns need none, and their executors no library

    def __reduce__(self) -> tuple[type["JsonSchema"], tuple[str]]:
        return JsonSchema, (self.text,)

    def prepare(self) -> None:
        jsonschema_rs = library("jsonschema_rs", "jsonschema-rs")
        try:
            self._validator = jsonschema_rs.validator_for(json.loads(self.text), retriever=_refuse_reference)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"no JSON Schema: {str(error).splitlines()[0]}") from None

    def check(self, payload: bytes) -> None:
        if self._validator is None:
            self.prepare()
        try:
            text = payload.decode().strip(WHITESPACE)
            value, end = DECODER.raw_decode(text)  # `decode` takes twice the time
        except UnicodeDecodeError:
            raise Misfit("the payload is no JSON: it is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise Misfit(f"the payload is no JSON: {error}") from None
        if end != len(text):
            raise Misfit(f"the payload is no JSON: more is behind the value, at character {end}")
        try:
            if self._validator.is_valid(value):
                return
            fault = next(self._validator.iter_errors(value))
        except ValueError as error:  # a value that the library can't take
            raise Misfit(str(error)[:MAX_REASON]) from None
        where = "/".join(map(str, fault.instance_path))
        raise Misfit((f"{where}: " if where else "") + fault.message[:MAX_REASON])


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"{uri} is not in the file")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
