"""Errors between the logs and Spark. All can be pickled, because they travel from executors to the driver.

FlockError
├── OptionError   an option of the source is invalid
├── RedisAway     Redis does not reply, or replies with an error
├── BlockError    an entry of a log is not a block as defined in deploy/docs/internals/log.md
└── DataLoss      messages that were to be read are no longer in a log
"""

from ...broker.errors import FlockError


class OptionError(FlockError):
    """An option of the source is invalid."""


class RedisAway(FlockError):
    """Redis does not reply, or replies with an error."""


class BlockError(FlockError):
    """An entry of a log is not a block of a layout that this release supports."""


class DataLoss(FlockError):
    """Messages that were to be read are no longer in a log."""
