"""From Spark's exceptions to ours: one line with the cause, without the traceback."""

import re

from ...broker.errors import FlockError

# An exception of ours in a Python worker arrives as text: `flockmq.cluster.analytics.errors.DataLoss: message; hint`.
OURS = re.compile(r"^(?:Caused by: )?(?:[\w.]*: )*flockmq\.[\w.]*errors\.\w+: (.*)$", re.MULTILINE)
PYTHON = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
CAUSE = re.compile(r"^Caused by: (?:[\w.$]+\.)?([\w$]+): (.+)$", re.MULTILINE)


def told(error: BaseException, what: str = "the Spark job has failed") -> FlockError:
    """The fault in one line; it begins with `what` if it isn't one of ours."""
    if isinstance(error, FlockError):
        return error
    text = str(error)
    if found := OURS.findall(text):
        return FlockError(found[-1].strip())
    if found := (CAUSE.findall(text) or PYTHON.findall(text)):
        name, message = found[-1]
        return FlockError(f"{what}: {message.strip()} ({name})")
    return FlockError(f"{what}: {first_line(text)}")


def first_line(text: str) -> str:
    """The first line with text, without Spark's codes around it."""
    line = next((line for line in text.splitlines() if line.strip()), "no reason is given").strip()
    return re.sub(r"\.?\s*SQLSTATE: \w+|;\s*line \d+ pos \d+;?$", "", line)
