"""The fixture `flockmq_broker`, available where FlockMQ and pytest are installed."""

from collections.abc import Iterator

import pytest

from .testing import Broker


@pytest.fixture
def flockmq_broker() -> Iterator[Broker]:
    """A broker of the test's own: `flockmq_broker.host`, `flockmq_broker.port`."""
    with Broker() as broker:
        yield broker
