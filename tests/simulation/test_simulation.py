"""Seeds of the whole cluster: a few hundred in `make test`, as many as there is time for in `make soak`.

FLOCKMQ_TEST_SEED is the first seed. Without it the seeds are the same each time: a failure is one of the change.
"""

import os

import pytest

from tests.simulation.process import Simulated, simulate
from tests.simulation.seeds import PLANS

FIRST = int(os.environ.get("FLOCKMQ_TEST_SEED", "1"))
SECONDS = 10.0  # for each part, on a busy core: then the remaining seeds are left out
PART = 50


def judged(found: Simulated) -> Simulated:
    """The same, without findings."""
    assert not found.failing, f"{found.output}\nReplay one with python -m tests.simulation --shrink --seed N"
    return found


@pytest.mark.parametrize("part", range(4))
def test_seeds(part: int) -> None:
    first = FIRST + part * PART
    assert judged(simulate("--seeds", f"{first}..{first + PART - 1}", "--seconds", str(SECONDS))).seeds > 0


@pytest.mark.parametrize("shards", [2, 3])
def test_seeds_with_several_shards(shards: int) -> None:
    """Each shard has a Redis of its own, and faults concern one of them."""
    seeds = "920140..920170"
    assert judged(simulate("--seeds", seeds, "--shards", str(shards), "--seconds", str(SECONDS))).seeds > 0


def test_transactions_in_their_order_though_the_clock_goes_back() -> None:
    """With this seed a heartbeat set the clock back between two commits: the second one was published first."""
    assert not simulate("--seeds", "890019..890019").failing


def test_same_seed_same_history() -> None:
    """Also after other seeds in the same process."""
    alone = simulate("--seeds", "8..9", "--digests", "--keep-going").digests
    later = simulate("--seeds", "5..9", "--digests", "--keep-going").digests
    assert len(alone) == 2
    assert later[-2:] == alone
    assert len(set(later)) == len(later)


def test_story() -> None:
    """The story of a seed has its plan, the nodes and the packets."""
    output = simulate("--seed", "3", "--detailed").output
    assert "n0             starts" in output
    assert "flockmq_commit" in output
    assert "Connected" in output


@pytest.mark.parametrize("name", PLANS)
def test_plan(name: str) -> None:
    """With several seeds: a plan has neither the packets' delays nor, mostly, the nodes that clients connect to."""
    judged(simulate("--plan", name, "--seeds", "1..20" if name == "stood still" else "1..5"))


def test_a_node_that_is_declared_dead_during_a_join_does_not_come_back() -> None:
    """This seed had no SUBACK: the joining node took the dead one for a member again."""
    judged(simulate("--seeds", "100016..100016", "--pushes", "early"))


def test_a_connection_that_ends_while_claims_are_compared_is_released_once() -> None:
    """With this seed it was released again as one that only Redis has, and its delayed will was gone."""
    judged(simulate("--seeds", "4094313..4094313", "--pushes", "early"))


def test_a_node_that_is_declared_dead_while_it_joins_joins_again() -> None:
    """With this seed it stood still in the last step, and was ready after that, without a place in the cluster."""
    judged(simulate("--seeds", "3683..3683", "--pushes", "early"))


def test_a_node_notes_its_number_of_leases_when_its_link_is_back() -> None:
    """With this seed a block under way asked for a key, and the node ignored the number: Redis found no room there."""
    judged(simulate("--seeds", "20001178..20001178", "--pushes", "early"))


def test_a_member_that_comes_when_the_last_one_leaves_gets_messages() -> None:
    """With this seed Redis forgot the room of the new subscriber, as the node left the group within the same block."""
    judged(simulate("--seeds", "21033130..21033130", "--pushes", "early"))


def test_a_node_that_is_declared_dead_while_it_joins_tries_again() -> None:
    """With this seed it read the nodes without itself, and ended."""
    judged(simulate("--seeds", "810114..810114", "--pushes", "early"))


def test_messages_of_groups_after_room_that_rides_in_a_commit() -> None:
    """With this seed a group's message had a lower number than the pushes of its commit, and the node ignored it."""
    judged(simulate("--seeds", "801332..801332", "--pushes", "early"))


def test_a_node_that_gives_a_key_up_twice_and_gets_it_again_keeps_the_order() -> None:
    """With this seed the second move marked the key, and a message that came back waited behind later ones."""
    judged(simulate("--seeds", "810302..810302", "--pushes", "early"))


def test_late_claims_are_sent_before_the_first_heartbeat() -> None:
    """With this seed the heartbeat was first, and a client that had gone took its session from its next connection."""
    judged(simulate("--seeds", "920207..920207", "--shards", "2"))


def test_an_acknowledged_chunk_of_a_transaction_is_at_a_replica() -> None:
    """With this seed Redis lost one, and the transaction was refused."""
    judged(simulate("--seeds", "960003..960003", "--shards", "3"))


def test_a_delayed_message_that_waits_for_another_node_is_needed() -> None:
    """With this seed its number was forgotten when its node had died, and a shard gave it twice."""
    judged(simulate("--seeds", "962774..962774", "--shards", "3"))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_seeds_for_long() -> None:
    seconds = os.environ.get("FLOCKMQ_TEST_SECONDS", "60")
    found = judged(simulate("--seeds", f"{FIRST + 1000}..{FIRST + 10_000_000}", "--seconds", seconds))
    print(found.output)
