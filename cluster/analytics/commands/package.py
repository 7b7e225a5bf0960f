"""`flockmq analytics package FILE.zip`: the code for executors, for `spark-submit --py-files`."""

from pathlib import Path

from ....broker.commands.parser import Parser
from ....broker.errors import FlockError

EXAMPLES = """\
  flockmq analytics package flockmq-analytics.zip
  spark-submit --py-files flockmq-analytics.zip my_job.py"""
DESCRIPTION = """\
Write a zip file with the source `flockmq`, the job, and redis-py, for `spark-submit --py-files`. Executors need Spark
4.2 or later and pyarrow beside it, and fastavro or protobuf for such schemas. The same release makes the same bytes."""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = Parser("analytics package", DESCRIPTION, "FILE", EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="the zip file; one that is there is replaced")
    parser.add_general_help(parser.add_argument_group("options"))
    path = Path(parser.parse(arguments).file)

    from ..package import build

    data = build()
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise FlockError(f"can't write {path}: {error.strerror}") from error
    print(path)
    return 0
