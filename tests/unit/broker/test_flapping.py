"""Flapping: a client that connects too often is refused for the time of the quota."""

from flockmq.broker.auth.flapping import Flapping
from flockmq.broker.config.limits_config import QuotasConfig


def test_one_client_too_often() -> None:
    flapping = Flapping(lambda listener: QuotasConfig(flapping="2 in 60 s"))
    found = [flapping.refuses("default", "a", "192.0.2.1:5") for _ in range(4)]
    assert found == [False, False, True, True]
    assert not flapping.refuses("default", "b", "192.0.2.1:5")
    assert not flapping.refuses("default", "a", "192.0.2.2:5")


def test_without_a_quota() -> None:
    flapping = Flapping(lambda listener: QuotasConfig())
    assert not any(flapping.refuses("default", "a", "192.0.2.1:5") for _ in range(100))
