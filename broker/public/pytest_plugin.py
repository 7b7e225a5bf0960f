"""The fixture `flockmq_broker`, available where FlockMQ and pytest are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .testing import Broker


@pytest.fixture
def flockmq_broker() -> Iterator[Broker]:
    """A broker of the test's own: `flockmq_broker.host`, `flockmq_broker.port`."""
    from .testing import Broker  # here: pytest loads this module for tests that need no broker, too

    with Broker() as broker:
        yield broker
