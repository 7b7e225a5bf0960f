"""Several clusters side by side: each is judged by its Redis, and has no effect on the others."""

import os

import pytest

from flockmq.loadtest.prove.history import History, Taken
from tests.simulation.checker import foreign, strange
from tests.simulation.cluster_keys import ClusterKeys, prefix_of
from tests.simulation.mixed_clusters import MIXED_CLUSTERS
from tests.simulation.process import simulate
from tests.simulation.seeds import plan_of
from tests.simulation.several import several_of

FIRST = int(os.environ.get("FLOCKMQ_TEST_SEED", "1"))
SECONDS = 10.0  # on a busy core: then the remaining seeds are left out
KEYS = {b"mq:epoch": b"1", b"mq:s:a": b"a", b"mq:p1:epoch": b"2", b"mq:p10:epoch": b"3"}


def test_seeds() -> None:
    found = simulate("--several", "--seeds", f"{FIRST}..{FIRST + 30}", "--seconds", str(SECONDS))
    assert found.seeds > 0
    assert not found.failing, found.output


def test_a_redis_that_has_refused_may_be_back() -> None:
    """With this seed a node kept its persistent clients: Redis had refused it, then an attempt got no reply."""
    assert not simulate("--several", "--seeds", "39..39").failing


def test_same_seed_same_history() -> None:
    both = [simulate("--several", "--seeds", "3..4", "--digests", "--keep-going").digests for _ in range(2)]
    assert both[0] == both[1]
    assert len(set(both[0])) == 2


@pytest.mark.soak
@pytest.mark.parametrize("name", ["loss at another Redis", "channel without a prefix"])
def test_mutation_is_found_by_several_clusters_only(name: str) -> None:
    assert simulate("--several", "--seeds", "1..40", "--mutation", name).failing
    assert not simulate("--seeds", "1..20", "--mutation", name).failing


def test_mutations_need_several_clusters() -> None:
    assert all(mutation.needs_several for mutation in MIXED_CLUSTERS)


@pytest.mark.parametrize("seed", range(50))
def test_the_first_cluster_has_the_plan_of_the_seed(seed: int) -> None:
    plan, alone = several_of(seed), plan_of(seed)
    steps = [step for step in plan.steps if step.kind != "at_all_servers"]
    assert (plan.clients, steps) == (alone.clients, [*alone.steps])
    assert {plan.steps[place] for place in plan.faults} - {*steps} == {*plan.steps} - {*alone.steps}
    assert len(plan.clusters) > 1
    assert not any(each.replicas for each in plan.beside if each.server == plan.server)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_steps_of_each_cluster_can_be_left_out(seed: int) -> None:
    plan = several_of(seed)
    left = plan.without(set(plan.all_faults))
    kinds = zip(plan.all_steps, left.all_steps, strict=True)
    changed = {place for place, (before, after) in enumerate(kinds) if before != after}
    assert changed == {place for place in plan.all_faults if plan.all_steps[place].kind != "nothing"}


@pytest.mark.parametrize(("number", "epoch"), [(0, b"1"), (1, b"2"), (10, b"3")])
def test_rules_see_the_keys_of_one_cluster(number: int, epoch: bytes) -> None:
    keys = ClusterKeys(KEYS, prefix_of(number))
    assert keys[b"mq:epoch"] == epoch
    assert dict(keys) == ({b"mq:epoch": epoch} if number else {b"mq:epoch": epoch, b"mq:s:a": b"a"})
    assert len(keys) == len(dict(keys))
    assert b"mq:change" not in keys


def test_keys_of_no_cluster_are_strange() -> None:
    assert not strange(KEYS, [prefix_of(number) for number in (0, 1, 10)])
    assert strange([*KEYS, b"epoch"], [prefix_of(number) for number in (0, 10)]) == [
        "S5 epoch is there",
        "S5 mq:p1:epoch is there",
    ]


def test_a_message_of_another_cluster_is_foreign() -> None:
    history = History([Taken("a", b"publisher 0/7"), Taken("a", b"will mortal 0 1000001"), Taken("a", b"no number")])
    assert not foreign(history, range(2_000_000))
    assert foreign(history, range(1_000_000)) == ["S6 a got b'will mortal 0 1000001' of another cluster"]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_seeds_for_long() -> None:
    seconds = os.environ.get("FLOCKMQ_TEST_SECONDS", "60")
    found = simulate("--several", "--seeds", f"{FIRST + 1000}..{FIRST + 10_000_000}", "--seconds", seconds)
    print(found.output)
    assert not found.failing, found.output
