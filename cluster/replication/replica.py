"""The replicated state of a node: its parts, for the modules that read or repair all of it."""

from typing import NamedTuple

from cluster.peers.members import Members
from cluster.replication.analytics_results import AnalyticsResults
from cluster.replication.barrier import Barrier
from cluster.replication.changes import Changes
from cluster.replication.snapshot import SnapshotReader
from cluster.replication.users import Users


class Replica(NamedTuple):
    """The parts of the replicated state."""

    members: Members
    changes: Changes
    barrier: Barrier
    reader: SnapshotReader
    results: AnalyticsResults
    users: Users
