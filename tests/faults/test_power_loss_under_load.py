"""A real node whose machine loses power under load: with `store.sync = "full"` nothing acknowledged is lost (F30).

The node is killed, and its disk becomes one that a loss of power may leave (`tests/harness/power_loss.py`). It starts
again, the clients return, and the checker judges all that they saw. `tests/storage/test_power_loss.py` has many more
moments, for the store alone.

FLOCKMQ_TEST_SEED and FLOCKMQ_TEST_SECONDS are as for `test_random_kills.py`.
"""

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from flockmq.broker.storage.log_segments import LogReader, folder_of
from flockmq.loadtest.prove.history import Acknowledged, Published
from tests.faults.fault_node import FaultNode
from tests.faults.load import SETTINGS, Load
from tests.harness.cluster_process import new_seed
from tests.harness.power_loss import Disk, Left, read_notes, variables
from tests.model.log_block import decode


class PowerLoad(Load):
    """A node under load whose machine loses power.

    Args:
        folder: for disks.
        seed: of the clients' acts, and of the losses.
        compacts: whether the node compacts its store all the time; else it logs all messages.
    """

    def __init__(self, folder: Path, seed: int, *, compacts: bool, sync: str = "full") -> None:
        self.disk_folder = folder / "disk"
        self._lost = folder / "lost"
        self._notes = folder / "notes"
        self.disk_folder.mkdir(parents=True)
        more: dict[str, object] = {} if compacts else {"analytics.topics": "#"}
        node = FaultNode(self.disk_folder, sync, {**SETTINGS, **more})
        if compacts:
            node.kill_at = "compacting:1"
        super().__init__(node, seed)
        self.node = node
        self.losses = random.Random(seed)
        self._power_on()

    def _power_on(self) -> None:
        self._notes.unlink(missing_ok=True)
        self._disk = Disk(self.disk_folder)
        self.node.variables = variables(self.disk_folder, self._notes)

    def kill(self) -> None:
        """The power is lost, and is back."""
        self.node.kill()
        for note in read_notes(self._notes):
            self._disk.apply(note)
        shutil.rmtree(self._lost, ignore_errors=True)
        self._disk.after_loss(self._lost, self.losses.choice(list(Left)), self.losses)
        shutil.rmtree(self.disk_folder)
        self._lost.rename(self.disk_folder)
        self.kills += 1
        self.fleet.lose()
        self._power_on()
        self.node.start()
        self.reconnect()

    def check_log(self) -> None:
        """The log has each acknowledged message of QoS 1 and 2, of QoS 2 once."""
        frames, _ = LogReader(folder_of(self.disk_folder / "flockmq.db")).read(None, 0, count=1 << 30, size=1 << 40)
        logged = [row.payload for frame in frames for row in decode(frame.block)]
        qos = {event.payload: event.qos for event in self.history.of(Published) if event.topic.startswith("t/")}
        acknowledged = {event.payload for event in self.history.of(Acknowledged)} & qos.keys()
        assert acknowledged <= set(logged)
        twice = [payload for payload in acknowledged if qos[payload] == 2 and logged.count(payload) > 1]
        assert twice == []


def run(load: PowerLoad, losses: int) -> None:
    """Lose power some times, and judge."""
    load.start()
    for _ in range(losses):
        for _ in range(load.losses.choice((10, 60, 150))):
            load.act()
        load.kill()
    load.finish()
    status = load.node.stop()
    load.node.check()
    assert status == 0, load.node.log_text()
    wrong = [line["event"] for line in load.node.log if line["level"] == "error" or "lacks" in line["event"]]
    assert wrong == []


@pytest.mark.parametrize("compacts", [False, True])
def test_a_loss_of_power_takes_nothing_acknowledged(tmp_path: Path, compacts: bool) -> None:
    load = PowerLoad(tmp_path, new_seed(), compacts=compacts)
    run(load, 4)
    if not compacts:
        load.check_log()


def test_the_checker_finds_a_node_that_does_not_sync(tmp_path: Path) -> None:
    """The deliberate fault."""
    load = PowerLoad(tmp_path, 1, compacts=False, sync="normal")
    load.losses.choice = lambda options: Left.NONE if isinstance(options[0], Left) else options[0]  # type: ignore[method-assign,assignment,return-value]
    load.start()
    load.publish()
    load.until(lambda: not any(client.outgoing for client in load.fleet.clients), "all acknowledged")
    load.kill()
    load.reconnect_all()
    load.fleet.run_for(0.1)
    assert load.findings(behind=True)
    load.node.stop()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_losses_of_power_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("FLOCKMQ_TEST_SECONDS", "60"))
    seed = new_seed()
    while time.monotonic() < end:
        print(f"FLOCKMQ_TEST_SEED={seed}")
        run(PowerLoad(tmp_path / str(seed), seed, compacts=seed % 2 == 0), 10)
        shutil.rmtree(tmp_path / str(seed))
        seed = seed % (1 << 32) + 1
