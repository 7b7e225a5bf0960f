"""The table of the functions in Redis, the Lua library and CALLS.md are the same."""

import re
from pathlib import Path

from flockmq.cluster.redis.calls import CALLS
from flockmq.cluster.redis.connector import function_library
from tests.architecture.calls_page import page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "deploy/docs/internals/CALLS.md"
FUNCTION = re.compile(r"^register\('(\w+)', \{(.*?)\}, function\((.*?)\)", re.M | re.S)


def test_lua_has_these_functions_with_these_arguments() -> None:
    found = {}
    for name, flags, parameters in FUNCTION.findall(function_library().decode()):
        found[name] = (sorted(re.findall(r"'(.*?)'", flags)), [each.strip() for each in parameters.split(",")])
    wanted = {}
    for name, call in CALLS.items():
        arguments = [each.replace("client_id", "cid") for each in call.arguments]
        wanted[name] = sorted(call.flags), ["prefix", *(["node"] if call.of_node else []), *arguments]
    assert found == wanted


def test_the_library_registers_no_function_in_another_way() -> None:
    assert function_library().count(b"redis.register_function(") == 1


def test_the_page_is_printed_from_the_table() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.architecture.calls_page > deploy/docs/internals/CALLS.md"
