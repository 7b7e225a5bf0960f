from collections.abc import Container

from .subscriptions import SubscriptionTree

def wanted_filters(
    tree: SubscriptionTree, scope: list[bytes], passed_over: Container[bytes], most: int, visits: int
) -> list[bytes] | None: ...
