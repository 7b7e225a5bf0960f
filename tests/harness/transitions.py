"""The tables of transitions in deploy/docs/CLUSTER.md."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "deploy/docs/CLUSTER.md"


def documented(heading: str) -> dict[tuple[str, str], str]:
    """The next state by state and event, from the first table below a heading."""
    section = PAGE.read_text("utf-8").split(f"\n### {heading}\n")[1]
    table = section.split("\n| --- | --- | --- |\n")[1].split("\n\n")[0].split("\n#")[0]
    found: dict[tuple[str, str], str] = {}
    for line in table.splitlines():
        sources, event, target = (cell.strip() for cell in line.strip("|").split("|"))
        for source in sources.split(", "):
            assert (source, event) not in found
            found[source, event] = target
    return found
