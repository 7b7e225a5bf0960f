"""The site of the documentation in a browser, without a network: it is searched, and fits a phone."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.harness.chromium import Chromium
from tests.harness.documentation import build_documentation

# Whether one of the links that the search shows, without the words that it marks there, is the first argument.
RESULTS = """
return [...document.activeElement.shadowRoot.querySelectorAll("a")]
  .some((link) => link.href.replace(/\\?[^#]*/, "") === arguments[0])
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site: Path = build_documentation(tmp_path_factory.mktemp("docs"), "main")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("max_inflight", "reference/configuration/#limitsmax_inflight"),
        ("wrong password", "reference/reason-codes/#0x86-bad-user-name-or-password"),
        ("coming from mosquitto", "ACCESS/#coming-from-mosquitto"),
    ],
)
def test_the_search_finds(browser: Chromium, address: str, words: str, found: str) -> None:
    browser.open(address)
    browser.until("return document.querySelector('.md-search__button') !== null")
    browser.run("document.querySelector('.md-search__button').click()")
    browser.until("return document.activeElement.shadowRoot?.activeElement?.tagName === 'INPUT'")
    browser.type(words)
    browser.until(RESULTS, address + found)
    loaded = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert [each for each in loaded if not each.startswith(address)] == []


@pytest.mark.parametrize(
    "page", ["", "BENCHMARKS/", "internals/KEYS/", "reference/api/", "reference/commands/", "tutorials/emqx/"]
)
def test_a_page_fits_a_phone(browser: Chromium, address: str, page: str) -> None:
    browser.look(390, 844)
    browser.open(address + page)
    assert browser.run("return document.documentElement.scrollWidth") == 390
