"""The Lua of Redis over the model of its data types: runs the real function library.

Lua 5.1 with the libraries that Redis gives to functions, as far as the library uses them: redis, cmsgpack, cjson,
struct. Conversions are as in Redis: https://redis.io/docs/latest/develop/programmability/lua-api/.
"""

import hashlib
import json
import re
import struct
import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import lupa.lua51
import msgpack

from tests.simulation.redis_types import Keyspace, RedisError, Reply, Status, UnknownCommand

FIELD = re.compile(r"[<>]|I4|I|B|H|d|c0")
FIELDS = {"I4": "I", "I": "I", "B": "B", "H": "H", "d": "d"}
TEXT = "c0"  # a text; when it is read, the number before it, which is no result, has its bytes

# `redis.call` raises a table, as in Redis: code of the library looks for its field `err`.
PRELUDE = b"""
local execute, publish, sha1hex, functions, flags = ...
redis = {LOG_WARNING = 3, sha1hex = sha1hex}
function redis.pcall(name, ...)
  if name == 'PUBLISH' or name == 'SPUBLISH' then
    return publish(...)
  end
  return execute(name, ...)
end
local call = redis.pcall
function redis.call(...)
  local reply = call(...)
  if type(reply) == 'table' and reply.err then
    error(reply)
  end
  return reply
end
function redis.log() end
function redis.error_reply(text) return {err = text} end
function redis.register_function(name, callback)
  if type(name) == 'table' then
    flags[name.function_name] = table.concat(name.flags or {}, ' ')
    name, callback = name.function_name, name.callback
  end
  functions[name] = callback
end
function invoke(callback, keys, arguments)
  local fine, reply = pcall(callback, keys, arguments)
  if fine or (type(reply) == 'table' and reply.err) then
    return reply
  end
  return {err = 'ERR ' .. tostring(reply)}
end
for _, name in ipairs({'io', 'os', 'dofile', 'loadfile', 'require', 'package', 'debug'}) do
  _G[name] = nil
end
"""


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


class Library:
    """A function library, loaded.

    Args:
        code: of the library.
        keyspace: the keys.
        publish: sends a message to a channel; returns the number of receivers.
    """

    def __init__(self, code: bytes, keyspace: Keyspace, publish: Callable[[bytes, bytes], int]) -> None:
        self.code = code
        self.failure = ""  # a fault of this model, which Lua would take for an error of Redis
        self._keyspace = keyspace
        self._publish = publish
        self._lua = lupa.lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._table_from = self._lua.table_from
        functions, flags = self._lua.table(), self._lua.table()
        globals_ = self._lua.globals()
        globals_[b"cmsgpack"] = self._table_from({b"pack": self._pack, b"unpack": self._unpack})
        globals_[b"cjson"] = self._table_from({b"encode": self._to_json, b"decode": self._from_json})
        globals_[b"struct"] = self._table_from({b"pack": _struct_pack, b"unpack": _struct_unpack})
        self._lua.execute(PRELUDE, self._execute, self._send, _sha1hex, functions, flags)
        self._invoke = globals_[b"invoke"]
        self._lua.execute(_compiled(code))
        self._functions = dict(functions.items())
        self.flags: dict[bytes, bytes] = dict(flags.items())  # of functions that have some

    def call(self, name: bytes, keys: list[bytes], arguments: list[bytes]) -> Reply:
        """Call a function. Raises RedisError."""
        function = self._functions.get(name)
        if function is None:
            raise RedisError("ERR Function not found")
        return self._from_lua(self._invoke(function, self._table_from(keys), self._table_from(arguments)))

    def close(self) -> None:
        """Free Lua. It has methods of this object, which has Lua: no garbage collector sees such a cycle."""
        del self._lua, self._table_from, self._invoke, self._functions

    # ---- redis ----

    def _execute(self, name: bytes, *arguments: Any) -> Any:
        try:
            texts = [each if type(each) is bytes else _argument(each) for each in arguments]
            reply = self._keyspace.execute(name, texts)
        except UnknownCommand as error:  # functions may go on after an error
            self.failure = str(error)
            raise
        except RedisError as error:
            return self._table_from({b"err": str(error).encode()})
        except Exception:
            self.failure = traceback.format_exc()
            raise
        return self._to_lua(reply)

    def _send(self, channel: bytes, message: bytes) -> int:
        return self._publish(channel, message)

    def _to_lua(self, reply: Reply) -> Any:
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is list:
            return self._table_from([self._to_lua(each) for each in reply])
        return self._table_from({b"ok": bytes(reply)})

    def _from_lua(self, value: Any) -> Reply:
        kind = type(value)
        if kind is bytes or kind is int:
            return value
        if kind is float:
            return int(value)
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if (error := value[b"err"]) is not None:
            raise RedisError(error.decode("latin-1"))
        if (status := value[b"ok"]) is not None:
            return Status(status)
        found = []
        number = 1
        while (item := value[number]) is not None:
            found.append(self._from_lua(item))
            number += 1
        return found

    # ---- cmsgpack ----

    def _pack(self, *values: Any) -> bytes:
        return b"".join(msgpack.packb(_plain(value), use_bin_type=False) for value in values)

    def _unpack(self, data: bytes) -> Any:
        try:
            found = msgpack.unpackb(data, raw=True, strict_map_key=False)
        except (ValueError, msgpack.UnpackException):
            raise RedisError("Bad data format in input.") from None
        return self._table_from(found, recursive=True) if isinstance(found, list | dict) else found

    # ---- cjson ----

    def _to_json(self, value: Any) -> bytes:
        return json.dumps(_decoded(_plain(value)), separators=(",", ":")).encode()

    def _from_json(self, text: bytes) -> Any:
        try:
            found = _encoded(json.loads(text))
        except ValueError:
            raise RedisError("Expected value but found invalid token") from None
        return self._table_from(found, recursive=True) if isinstance(found, list | dict) else found


@lru_cache(maxsize=4)
def _compiled(code: bytes) -> bytes:
    """A library in the binary form of Lua: a run loads it several times, which mostly is parsing."""
    lua = lupa.lua51.LuaRuntime(encoding=None)
    found: bytes = lua.execute(b"return string.dump(assert(loadstring(...)))", re.sub(rb"\A#![^\n]*", b"", code))
    return found


def _argument(value: Any) -> bytes:
    """A number as an argument of a command."""
    if type(value) is int:
        return b"%d" % value
    if type(value) is float:
        return f"{value:.17g}".encode()
    raise RedisError("ERR Lua redis lib command arguments must be strings or integers")


def _plain(value: Any) -> Any:
    """A value of Lua as one of Python: a table is a list if its keys are 1 to n."""
    if type(value) in (bytes, int, float, bool) or value is None:
        return value
    items = dict(value.items())
    length = len(items)
    if all(type(key) is int and 1 <= key <= length for key in items):
        return [_plain(items[number]) for number in range(1, length + 1)]
    return {key: _plain(each) for key, each in items.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if isinstance(value, dict):
        return {_decoded(key): _decoded(each) for key, each in value.items()}
    return value


def _encoded(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [_encoded(each) for each in value]
    if isinstance(value, dict):
        return {_encoded(key): _encoded(each) for key, each in value.items()}
    return value


@lru_cache(maxsize=100)
def _struct_parts(text: bytes) -> list[struct.Struct]:
    """The fields of a format, up to each text and behind the last one."""
    order, parts = "", [""]
    for field in FIELD.findall(text.decode()):
        if field == TEXT:
            parts.append("")
        elif field in "<>":
            order = field
        else:
            parts[-1] += FIELDS[field]
    return [struct.Struct(order + part) for part in parts]


def _struct_pack(text: bytes, *values: Any) -> bytes:
    packed, at = b"", 0
    for number, part in enumerate(_struct_parts(text)):
        if number:
            packed += values[at]
            at += 1
        count = len(part.format) - part.format.startswith(("<", ">"))
        packed += part.pack(*values[at : at + count])
        at += count
    return packed


def _struct_unpack(text: bytes, data: bytes, position: int = 1) -> tuple[Any, ...]:
    found: list[Any] = []
    at = position - 1
    for number, part in enumerate(_struct_parts(text)):
        if number:
            size = found.pop()
            if at + size > len(data):
                raise RedisError("data string too short")
            found.append(data[at : at + size])
            at += size
        if at + part.size > len(data):
            raise RedisError("data string too short")
        found += part.unpack_from(data, at)
        at += part.size
    return (*found, at + 1)
