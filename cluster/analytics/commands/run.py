"""`flockmq analytics run`: the Spark job, with its own Spark."""

from .. import job


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    return job.run(arguments)
