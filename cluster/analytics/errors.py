"""Errors between the logs and Spark. All can be pickled, because they travel from executors to the driver.

FlockError
├── OptionError   an option of the source makes no sense
├── RedisAway     Redis does not answer, or not as it should
├── BlockError    an entry of a log is not a block as deploy/docs/CLUSTER.md has it
└── DataLoss      messages that were to be read are no longer in a log
"""

from broker.errors import FlockError


class OptionError(FlockError):
    """An option of the source makes no sense."""


class RedisAway(FlockError):
    """Redis does not answer, or not as it should."""


class BlockError(FlockError):
    """An entry of a log is not a block that this release understands."""


class DataLoss(FlockError):
    """Messages that were to be read are no longer in a log."""
