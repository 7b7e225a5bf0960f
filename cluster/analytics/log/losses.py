"""Reports missing messages: by an error, or by a warning and a count."""

import logging

from ..errors import BlockError, DataLoss
from .jobs import Job
from .log import Gap

_log = logging.getLogger(__name__)
HINT = (
    "keep more ([analytics] log_bytes and log_seconds of the nodes), or go on without them: "
    'option("failOnDataLoss", "false") in Spark, --skip-missing elsewhere'
)


class Losses:
    """Receives gaps.

    Args:
        fail: whether a gap is an error.
        job: counts the gaps if they are no error.
    """

    def __init__(self, fail: bool, job: Job) -> None:
        self._fail = fail
        self._job = job
        self._told: set[Gap] = set()

    def missing(self, gap: Gap, damage: BlockError | None = None) -> None:
        """A range is missing from a log, or damaged.

        Raises:
            DataLoss: losses are errors.
        """
        words = _words(gap, damage)
        if self._fail:
            raise DataLoss(words, HINT)
        if gap not in self._told:
            self._told.add(gap)
            _log.warning("%s; continuing without them", words)
            self._job.lose(gap)


def _words(gap: Gap, damage: BlockError | None) -> str:
    if damage is not None:
        return f"the entry {gap.end} of the log of node {gap.node} can't be read ({damage})"
    if gap.start == gap.end:
        return f"the log of node {gap.node} was read up to {gap.start} and is deleted; its end is unknown"
    if gap.end.total < gap.start.total:
        return f"the log of node {gap.node} was read up to {gap.start}, and Redis has entries up to {gap.end} only"
    return f"{gap.bytes} bytes are missing from the log of node {gap.node}, ids after {gap.start} up to {gap.end}"
