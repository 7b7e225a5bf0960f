"""The replicated state of a node: its parts, for the modules that read or repair all of it."""

from typing import NamedTuple

from ..elsewhere import Elsewhere
from ..peers.members import Members
from .analytics_results import AnalyticsResults
from .applied_changes import AppliedChanges
from .barrier import Barrier
from .changes import Changes
from .redis_access import RedisAccess
from .snapshot import SnapshotReader


class Replica(NamedTuple):
    """The parts of the replicated state."""

    members: Members
    changes: Changes
    barrier: Barrier
    applied: AppliedChanges
    reader: SnapshotReader
    results: AnalyticsResults | Elsewhere
    access: RedisAccess | Elsewhere
