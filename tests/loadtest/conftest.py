"""Fixtures that tests of load tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.broker_process import BrokerProcess


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A node that keeps nothing on disk."""
    node = BrokerProcess(tmp_path).start()
    yield node
    node.stop()
    node.check()
