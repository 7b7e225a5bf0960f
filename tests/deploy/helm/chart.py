"""The chart in deploy/helm, rendered by Helm: the package helm-python-sdk has Helm's own Go code as a library.

python -m tests.deploy.helm.chart record                    after a change of the chart
helm template ... | python -m tests.deploy.helm.chart compare NAME    whether the program renders the same objects
"""

import base64
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path("deploy/helm/flockmq").resolve()
HERE = Path(__file__).parent
VALUES = {path.stem: path for path in sorted((HERE / "values").iterdir())}
GENERATED = ("password", "url")  # keys of Secrets: values that the chart makes are not recorded

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]  # kind, name -> object


def values_of(name: str) -> dict[str, Any]:
    """The values of a recorded release."""
    values: dict[str, Any] = yaml.safe_load(VALUES[name].read_text())
    return values


def manifests(values: dict[str, Any], *, release: str = "flockmq", namespace: str = "flockmq") -> dict[str, str]:
    """The text of each template, by its path in the chart; the schema has judged the values before.

    Raises:
        HelmError: the schema or a template refuses them.
    """
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name=release, namespace=namespace, revision=1, is_install=True)
    return {path.removeprefix(f"{CHART.name}/"): text for path, text in sorted(rendered.items())}


def render(values: dict[str, Any], *, release: str = "flockmq", namespace: str = "flockmq") -> Objects:
    """The objects of a release, with its test."""
    texts = manifests(values, release=release, namespace=namespace)
    return by_name(
        found for path, text in texts.items() if path.endswith(".yaml") for found in yaml.safe_load_all(text)
    )


def by_name(found: Iterable[Object | None]) -> Objects:
    """Objects by kind and name; a name that two have is an error."""
    objects: Objects = {}
    for one in found:
        if one is not None:
            key = one["kind"], one["metadata"]["name"]
            assert key not in objects, key
            objects[key] = one
    return objects


def recording(name: str) -> str:
    """What is recorded of a release."""
    texts = manifests(values_of(name))
    notes = texts.pop("templates/NOTES.txt")
    shown = [f"# Source: {path}\n{text.strip()}\n" for path, text in texts.items() if text.strip()]
    said = "".join(f"# {line}".rstrip() + "\n" for line in notes.strip().splitlines())
    return mask("---\n".join(shown) + f"---\n# NOTES.txt\n{said}")


def mask(text: str) -> str:
    """The text without generated secrets, which differ each time."""

    def hide(found: re.Match[str]) -> str:
        return f"{found[1]}: {len(base64.b64decode(found[2]))} bytes"

    return re.sub(rf"^(  (?:{'|'.join(GENERATED)})): ([A-Za-z0-9+/=]+)$", hide, text, flags=re.MULTILINE)


def recorded(name: str) -> Path:
    """The file of a recording."""
    return HERE / "recorded" / f"{name}.yaml"


def compare(name: str, text: str) -> list[tuple[str, str]]:
    """Objects of `helm template` that are not as they are recorded."""
    here, there = (by_name(yaml.safe_load_all(mask(each))) for each in (recorded(name).read_text(), text))
    return sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))


def main(action: str, *names: str) -> None:
    """Run the command line."""
    if action == "record":
        for name in VALUES:
            recorded(name).write_text(recording(name))
        return
    different = compare(names[0], sys.stdin.read())
    sys.exit(f"not as recorded: {different}" if different else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
