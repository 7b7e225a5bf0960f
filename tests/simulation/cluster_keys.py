"""The keys of one cluster among all keys of a Redis. Rules see them as if the cluster had the prefix `mq:`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

PREFIX = b"mq:"  # of the first cluster of a run
PREFIXES = re.compile(rb"mq:(?:p\d+:)?")


def prefix_of(number: int) -> bytes:
    """The prefix of a cluster, from its number in the run."""
    return PREFIX + b"p%d:" % number if number else PREFIX


def prefix_in(key: bytes) -> bytes:
    """The prefix of a cluster with which a key begins; empty: it begins with none."""
    found = PREFIXES.match(key)
    return found[0] if found else b""


class ClusterKeys(Mapping[bytes, Any]):
    """The keys of one cluster.

    Args:
        keys: of a Redis.
        prefix: of the cluster.
    """

    def __init__(self, keys: Mapping[bytes, Any], prefix: bytes) -> None:
        self._keys = keys
        self._prefix = prefix

    def __getitem__(self, key: bytes) -> Any:
        return self._keys[self._prefix + key.removeprefix(PREFIX)]

    def __iter__(self) -> Iterator[bytes]:
        return (PREFIX + key[len(self._prefix) :] for key in self._keys if prefix_in(key) == self._prefix)

    def __len__(self) -> int:
        return sum(1 for _ in self)
