"""Errors that the log of the add-on shows as one line."""


class AddonError(Exception):
    """Options or files with which no node can be started."""


class SupervisorError(Exception):
    """The Supervisor did not answer, or answered what it is not expected to answer."""
