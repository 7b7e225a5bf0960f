"""The simulation finds deliberate faults of the product: a few in `make test`, all of them in `make soak`."""

import pytest

from tests.simulation.process import simulate

MOST = 2000  # seeds
# Found at once, of each kind: text of the Lua library, and methods of Python classes.
FEW = ("offline queue", "ack before Redis", "no barrier", "wills forgotten")
FEW_MOST = 60


def seeds_until_found(name: str, most: int) -> int:
    """The seeds that were tried when the mutation was found."""
    found = simulate("--seeds", f"1..{most}", "--mutation", name)
    assert found.failing, f"{name} was not found in {found.seeds} seeds"
    return found.seeds


@pytest.mark.parametrize("name", FEW)
def test_mutation_is_found(name: str) -> None:
    seeds_until_found(name, FEW_MOST)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_all_mutations_are_found() -> None:
    found = simulate("--mutations", str(MOST))
    print(found.output)
    assert not found.failing, found.output
