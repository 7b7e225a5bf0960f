"""The simulation finds deliberate faults of the product: a few in `make test`, all of them in `make soak`."""

import pytest

from flockmq.cluster.redis.connector import function_library
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import ALL
from tests.simulation.process import simulate
from tests.simulation.shard_mutations import SHARDED_PLANS

MAX_SEEDS = 500  # seeds for each in the long form
# Found soon, of each kind: text of the Lua library, and methods of Python classes.
FEW = ("offline queue", "delayed message twice", "acks dropped", "dead node sent nothing", "loss reported twice")
MAX_SEEDS_OF_FEW = 60


@pytest.mark.parametrize("name", FEW)
def test_mutation_is_found(name: str) -> None:
    found = simulate("--seeds", f"1..{MAX_SEEDS_OF_FEW}", "--mutation", name)
    assert found.failing, f"{name} was not found in {found.seeds} seeds"


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_mutation_is_of_this_product(mutation: Mutation) -> None:
    """The texts of the library, and the methods, that it replaces are there."""
    if mutation.lua:
        assert mutation.change(function_library()) != function_library()
    with mutation.applied():
        assert mutation.lua or mutation.methods


@pytest.mark.parametrize("name", SHARDED_PLANS)
def test_rule_between_shards(name: str) -> None:
    """Without the rule that it names, the plan has a finding."""
    assert simulate("--plan", name, "--seeds", "1..10", "--mutation", name).failing
    assert not simulate("--plan", name, "--seeds", "1..3").failing


def test_ended_connections_count() -> None:
    """Of QoS 2 that Redis loses, a node gives back also what clients have got whose connections have ended."""
    assert simulate("--plan", "lost handshakes, ended", "--seeds", "1..5", "--mutation", "ended not kept").failing


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_mutations_are_found() -> None:
    found = simulate("--mutations", str(MAX_SEEDS))
    print(found.output)
    assert not found.failing, found.output
