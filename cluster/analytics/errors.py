"""Errors between Spark and the logs, or a broker. All can be pickled, because they travel from executors to the driver.

FlockError
├── OptionError   an option of the source or of the sink is invalid
├── ArchiveError  the table with messages before the log can't be read, or is no such table
├── RowError      the sink can't send rows with these columns, or one of the rows
├── BrokerError   the broker that the sink sends to is not there, or has refused something
├── RedisAway     Redis does not reply, or replies with an error
├── BlockError    an entry of a log is not a block as defined in deploy/docs/internals/log.md
└── DataLoss      messages that were to be read are no longer in a log
"""

from ...broker.errors import FlockError


class OptionError(FlockError):
    """An option of the source or of the sink is invalid."""


class ArchiveError(FlockError):
    """The table with messages before the log can't be read, or is no such table."""


class RowError(FlockError):
    """The sink can't send rows with these columns, or one of the rows."""


class BrokerError(FlockError):
    """The broker that the sink sends to is not there, or has refused something."""


class RedisAway(FlockError):
    """Redis does not reply, or replies with an error."""


class BlockError(FlockError):
    """An entry of a log is not a block of a layout that this release supports."""


class DataLoss(FlockError):
    """Messages that were to be read are no longer in a log."""
