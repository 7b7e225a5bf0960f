"""A node that is no more than its calls of the functions."""

from collections.abc import Iterator

import pytest

from tests.harness.function_caller import Caller
from tests.harness.redis_process import RedisProcess


@pytest.fixture
def caller(redis_server: RedisProcess) -> Iterator[Caller]:
    """Node `n1`, in an empty Redis."""
    made = Caller(redis_server.port)
    yield made
    made.close()
