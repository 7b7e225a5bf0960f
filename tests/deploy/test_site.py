"""The site of the documentation: `make docs` builds it strictly, with every key, command, metric, request and code."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from flockmq._speedups.codec.tables import REASON_CODES
from flockmq.broker.admin import page_files
from flockmq.broker.admin.api.api import DESCRIBED
from flockmq.broker.cli import COMMANDS
from flockmq.broker.config.keys import KEYS
from flockmq.broker.metrics import METRICS
from flockmq.broker.version import DOCUMENTATION
from tests.harness.broker_process import ROOT
from tests.harness.documentation import SITE, build_documentation, build_strictly

CONFIG = tomllib.loads((SITE / "zensical.toml").read_text("utf-8"))["project"]
sys.path.append(str(SITE))

import pages  # noqa: E402
import places  # noqa: E402
import publish  # noqa: E402
from reference import reason_codes  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_documentation(tmp_path_factory.mktemp("docs"), "v1.2.3")


def html(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text("utf-8")


# ---- reference ----


def test_every_configuration_key_is_there(site: Path) -> None:
    found = set(re.findall(r'<h3 id="([^"]+)"', html(site, "reference/configuration")))
    assert found == {name.replace(".", "") for name in KEYS}


def test_every_command_is_there(site: Path) -> None:
    text = html(site, "reference/commands")
    assert set(re.findall(r'<h2 id="([^"]+)"', text)) == set(COMMANDS)
    assert all(f"usage: flockmq {name}" in text for name in COMMANDS)


def test_every_metric_is_there(site: Path) -> None:
    text = html(site, "reference/metrics")
    for metric in METRICS:
        assert f"<code>flockmq_{metric.name}{'_total' if metric.kind == 'counter' else ''}</code>" in text


def test_every_request_of_the_api_is_there(site: Path) -> None:
    document = json.loads((site / "reference" / "openapi.json").read_text("utf-8"))
    listed = {each["operationId"] for of in document["paths"].values() for each in of.values()}
    assert listed == {each.name for each in DESCRIBED}
    assert set(re.findall(r'<span id="(\w+)"', html(site, "reference/api"))) == listed


def test_every_reason_code_has_a_meaning_and_the_log_its_sentences(site: Path) -> None:
    text = html(site, "reference/reason-codes")
    assert all(f"<code>0x{each.code:02X}</code>" in text for each in REASON_CODES)
    said = reason_codes.sentences()
    assert "wrong password" in said[0x86]  # of a Verdict
    assert "taken over by a new connection with its client id" in said[0x8E]  # of a CloseReason
    assert "too many subscriptions" in said[0x97]  # of a Refusal
    assert "the node is drained" in said[0x88]  # of a call of `refuse`


# ---- strictness ----


@pytest.mark.parametrize("link", ["other.md", "here.md#none", "#none"])
def test_a_dead_link_fails_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "here.md").write_text(f"# Here\n\n[there]({link})\n")
    settings = '[project]\nsite_name = "s"\ndocs_dir = "pages"\nvalidation = true\nnav = ["here.md"]\n'
    (tmp_path / "zensical.toml").write_text(settings)
    done = build_strictly(tmp_path)
    assert done.returncode != 0
    assert "does not exist" in done.stdout + done.stderr


def test_a_page_needs_a_place_in_the_navigation(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.md"):
        (tmp_path / name).touch()
    assert pages.without_place(tmp_path, [{"A": "a.md"}, {"More": [{"B": "b.md"}]}]) == ["c.md"]


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("ACCESS.md", "[x](MQTT.md#levels)", "[x](MQTT.md#levels)"),
        ("ACCESS.md", "[x](#users) [y](https://a.example/b.md)", "[x](#users) [y](https://a.example/b.md)"),
        ("ACCESS.md", "[x](../flockmq.toml)", "[x](S/deploy/flockmq.toml)"),
        ("ACCESS.md", "[x](../../SECURITY.md)", "[x](POLICY.md)"),
        ("internals/turn.md", "[x](../SECURITY.md#a)", "[x](../SECURITY.md#a)"),
        ("internals/turn.md", "[x](../../../CONTRIBUTING.md#style)", "[x](../CONTRIBUTING.md#style)"),
        ("CONTRIBUTING.md", "[x](deploy/docs/DESIGN.md#words)", "[x](DESIGN.md#words)"),
        ("CONTRIBUTING.md", "[x](deploy/docs/records/)", "[x](S/deploy/docs/records)"),
        ("ACCESS.md", "- a\n  - b\n", "- a\n    - b\n"),
        ("ACCESS.md", "```\n  - b [x](../flockmq.toml)\n```\n", "```\n  - b [x](../flockmq.toml)\n```\n"),
    ],
)
def test_links_of_the_repository_are_links_of_the_site(page: str, text: str, expected: str) -> None:
    assert places.adapted(text, page, "S") == expected


@pytest.mark.parametrize("link", ["NOWHERE.md", "nowhere/", "../../../outside.md"])
def test_a_link_to_no_file_fails_the_build(link: str) -> None:
    with pytest.raises(places.DeadLink, match=r"deploy/docs/ACCESS\.md"):
        places.adapted(f"[x]({link})", "ACCESS.md", "S")


# ---- search, offline, addresses ----


def test_the_search_finds_sections_of_pages(site: Path) -> None:
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    found = {item["location"] for item in items}
    assert {"reference/configuration/#limitsmax_inflight", "ACCESS/#coming-from-mosquitto"} <= found
    assert len({location.partition("#")[0] for location in found}) == len(set(pages.named(CONFIG["nav"])))


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="?([^" >]+)', path.read_text("utf-8"))
        loaded += re.findall(
            r'<link[^>]*rel="?(?:stylesheet|icon|preload)[^>]* href="?([^" >]+)', path.read_text("utf-8")
        )
        assert loaded
        assert not [each for each in loaded if re.match(r"(https?:)?//", each)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text("utf-8")), path


def test_the_address_is_the_same_everywhere() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert urls["Documentation"] == DOCUMENTATION
    assert CONFIG["site_url"] == f"{DOCUMENTATION}/{publish.LATEST}/"
    assert CONFIG["repo_url"] == urls["Source"]
    assert f'<a href="{DOCUMENTATION}"'.encode() in page_files.read()["index.html"].data


# ---- versions ----


def test_a_version_links_to_its_sources_and_lists_the_others(site: Path) -> None:
    text = html(site, "ACCESS")
    assert f"{CONFIG['repo_url']}/blob/v1.2.3/deploy/flockmq.toml" in text
    assert re.search(r'"version":\s*\{[^}]*"provider":\s*"mike"', text)


def test_each_minor_version_has_a_folder_and_the_newest_one_is_the_latest(tmp_path: Path) -> None:
    site, published = tmp_path / "site", tmp_path / "published"
    site.mkdir()
    published.mkdir()
    for tag in ("v0.9.0", "v0.10.0", "v0.10.1", "v0.9.1"):
        (site / "index.html").write_text(tag)
        publish.publish(site, published, tag)
    shown = {path.parent.name: path.read_text() for path in published.glob("*/index.html")}
    assert shown == {"0.9": "v0.9.1", "0.10": "v0.10.1", "latest": "v0.10.1"}
    listed = json.loads((published / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [("0.10", ["latest"]), ("0.9", [])]
    assert 'url=latest/"' in (published / "index.html").read_text()


def test_only_releases_are_published(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"v1\.0\.0rc1"):
        publish.publish(tmp_path, tmp_path, "v1.0.0rc1")
    assert not list(tmp_path.iterdir())
