"""The topic filters for which this node has clients: what the others must know to send it messages."""

from collections.abc import Iterable

from _speedups.cluster.journal import ClusterJournal


class Routes:
    """Counts who has which filter; tells the others when the first comes, and when the last goes.

    A route's QoS is the highest that a clean session has its filter with: what goes to persistent ones with QoS 1 or 2
    goes by their queues. It is only ever raised: lowering it would save little. There are none to $SYS, where each node
    speaks of itself to its own clients.
    """

    def __init__(self, ledger: ClusterJournal) -> None:
        self._ledger = ledger
        self._known: dict[bytes, list[int]] = {}  # filter -> [holders, QoS]

    def __len__(self) -> int:
        return len(self._known)

    def add(self, name: bytes, qos: int) -> None:
        """One more session has the filter."""
        if is_local(name):
            return
        known = self._known.setdefault(name, [0, -1])
        known[0] += 1
        self.raise_to(name, qos)

    def raise_to(self, name: bytes, qos: int) -> None:
        """A session that has the filter wants this QoS."""
        if is_local(name):
            return
        known = self._known[name]
        if qos > known[1]:
            known[1] = qos
            self._ledger.change(("route", name, qos))

    def remove(self, names: Iterable[bytes]) -> None:
        """A session has these filters no more."""
        for name in names:
            if is_local(name):
                continue
            known = self._known[name]
            known[0] -= 1
            if not known[0]:
                del self._known[name]
                self._ledger.change(("unroute", name))


def is_local(name: bytes) -> bool:
    """Whether a topic filter is for nothing but $SYS."""
    return name.startswith(b"$SYS/") or name == b"$SYS"
