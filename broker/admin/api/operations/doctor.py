"""The health of the nodes."""

from typing import Any

from ....config.toml_text import to_toml
from ....doctor import SEVERITIES
from ..aggregate import call, failures, values
from ..operation import FAILURES, Operation, Request
from ..schema import array, record, table, text

RESULT = record(
    {
        "check": text("the kind of thing that was examined"),
        "severity": text(enum=list(SEVERITIES)),
        "finding": text(),
        "remedy": text("empty: nothing is to be done"),
    }
)


async def doctor(request: Request) -> dict[str, Any]:
    """The results of the checks of each node, and of one over all."""
    answers = await call(request.node, "doctor")
    found = values(answers)
    return {
        "nodes": {node: examined["results"] for node, examined in found.items()},
        "names": {node: examined["name"] for node, examined in found.items()},
        "cluster": compared({node: examined["version"] for node, examined in found.items()}),
        "configuration": to_toml(request.node.config, changed=True),
        "failures": failures(answers),
    }


def compared(versions: dict[str, str]) -> list[dict[str, str]]:
    """What only a comparison of the nodes shows."""
    if len(set(versions.values())) < 2:
        return []
    shown = ", ".join(f"{node} {version}" for node, version in sorted(versions.items()))
    return [
        {
            "check": "versions",
            "severity": "note",
            "finding": f"the nodes have different versions: {shown}",
            "remedy": "complete the upgrade",
        }
    ]


OPERATIONS = (
    Operation(
        "GET",
        "/doctor",
        "doctor",
        "The health of the nodes: what may fail next, the worst first, with its remedy.",
        doctor,
        record(
            {
                "nodes": table(array(RESULT), "the results of each node, by its id"),
                "names": table(text(), "the names of these nodes"),
                "cluster": array(RESULT, "results over all nodes"),
                "configuration": text("of this node: all that is not a default, as TOML, without secrets"),
            },
            {"failures": FAILURES},
        ),
        role="admin",
        changes=False,
    ),
)
