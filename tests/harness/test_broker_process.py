"""The fixture that starts nodes: it waits, restarts, kills, and notices what a node has logged."""

import socket

import pytest

from tests.harness.broker_process import BrokerProcess

pytestmark = pytest.mark.parametrize("store", ["memory"])


def test_it_is_ready_when_started_and_keeps_its_port(broker: BrokerProcess) -> None:
    port, pid = broker.port, broker.pid
    socket.create_connection(("127.0.0.1", port), 5).close()
    broker.restart()
    assert (broker.port, broker.pid != pid) == (port, True)
    broker.kill()
    assert not broker.running
    broker.start()
    socket.create_connection(("127.0.0.1", port), 5).close()


def test_it_measures(broker: BrokerProcess) -> None:
    assert broker.rss() > 1 << 20
    assert broker.cpu() >= 0
    assert broker.open_files() > 3


@pytest.mark.parametrize(
    "line",
    [
        {"level": "error", "event": "internal error", "error": "Traceback"},
        {"level": "raw", "event": "Traceback (most recent call last):"},
        {"level": "error", "event": "x", "traceback": "..."},
        {"level": "raw", "event": "x.c:2:115: runtime error: shift exponent 40 is too large for 32-bit type 'int'"},
        {"level": "raw", "event": "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000006958"},
    ],
)
def test_a_fault_in_the_log_is_noticed(broker: BrokerProcess, line: dict[str, str]) -> None:
    broker.log.append(line)
    with pytest.raises(AssertionError):
        broker.check()
    broker.log.remove(line)


def test_a_line_that_never_comes_is_noticed(broker: BrokerProcess) -> None:
    broker.stop()
    with pytest.raises(AssertionError, match="no line"):
        broker.wait_for_log("the moon is blue")
