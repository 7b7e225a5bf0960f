"""A browser for all tests of a process, and brokers that answer over HTTP."""

from collections.abc import Iterator

import pytest

from tests.harness.broker_process import BrokerProcess
from tests.harness.chromium import Chromium
from tests.web.http_client import HttpClient


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The browser."""
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Chromium) -> Iterator[Chromium]:
    """The browser, as if it were a new one; afterwards the page must not have complained."""
    chromium.look(1200)
    chromium.console()
    yield chromium
    said = [line for line in chromium.console() if "Failed to load resource" not in line]  # which the page shows
    chromium.open("about:blank")
    assert not said, said


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A node that the tests of a file share."""
    settings = {"http.listen": "127.0.0.1:0", "mqtt.sys_interval": 0}
    broker = BrokerProcess(tmp_path_factory.mktemp("node"), "sqlite", settings).start()
    yield broker
    assert broker.stop() == 0
    broker.check()


@pytest.fixture
def url(node: BrokerProcess) -> str:
    """Of its page."""
    return HttpClient(node).url
