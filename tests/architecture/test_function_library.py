"""The files of the function library: each is a chunk, whose names can't collide with names of others.

Lua allows 200 locals and 60 upvalues in a function. A name that is no local is a global, which is nil at run time.
"""

import pytest

from flockmq.cluster.redis.connector import FUNCTIONS, MODULES, function_library
from tests.architecture.lua_chunk import functions

# Of Lua and Redis, as far as the library uses them.
LIBRARIES = {"cjson", "cmsgpack", "math", "redis", "string", "struct", "table"}
FUNCTIONS_OF_LUA = {"assert", "error", "ipairs", "next", "pairs", "pcall", "select", "tonumber", "tostring", "type"}
GIVEN = LIBRARIES | FUNCTIONS_OF_LUA | {"unpack"}
MOST_LOCALS, MOST_UPVALUES = 100, 40


def test_all_files_are_in_the_library() -> None:
    assert sorted(MODULES) == sorted(path.stem for path in FUNCTIONS.glob("*.lua"))


@pytest.mark.parametrize("name", MODULES)
def test_a_file_uses_files_before_it_and_sets_no_global(name: str) -> None:
    before = MODULES[: MODULES.index(name)]
    found = functions((FUNCTIONS / f"{name}.lua").read_text())
    for each in found:
        assert not each.writes, f"{name}.lua:{each.line} sets {sorted(each.writes)}"
        unknown = each.reads - GIVEN - {*before}
        assert not unknown, f"{name}.lua:{each.line} uses {sorted(unknown)}, which no file before it has"


def test_no_function_is_near_the_limits_of_lua() -> None:
    for each in functions(function_library().decode().partition("\n")[2]):
        assert each.most_locals <= MOST_LOCALS, f"line {each.line} of the library: {each.most_locals} locals"
        assert each.upvalues <= MOST_UPVALUES, f"line {each.line} of the library: {each.upvalues} upvalues"


def test_the_limits_are_seen() -> None:
    """The reading of compiled code itself."""
    code = "local a, b = 1, x\nlocal function f() local c = a; y = b + c end\nreturn f"
    inner, chunk = functions(code)
    assert (inner.line, inner.most_locals, inner.upvalues) == (2, 1, 2)
    assert (inner.reads, inner.writes) == (frozenset(), {"y"})
    assert (chunk.most_locals, chunk.upvalues, chunk.reads, chunk.writes) == (3, 0, {"x"}, frozenset())
