"""Pictures of the web page for the documents, with the traffic of a small fleet: `python -m tests.web.screenshots`."""

import contextlib
import json
import math
import random
import tempfile
import threading
import time
from pathlib import Path

from flockmq._speedups.codec.packets import Publish
from tests.harness.chromium import Chromium
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

DOCS = Path(__file__).resolve().parents[2] / "deploy" / "docs"
MAX_PICTURE_BYTES = 150_000
DEVICES = 60
SECONDS = 75  # of traffic before the pictures: the curves are to have a shape
SHOTS = (  # file, view, width, dark
    ("page-overview.png", "overview", 1180, False),
    ("page-overview-dark.png", "overview", 1180, True),
    ("page-topics.png", "topics", 1180, False),
    ("page-clients-phone.png", "clients", 390, True),
)


def run(cluster: ClusterProcess, stopped: threading.Event) -> None:
    """The fleet: devices at three nodes that publish their state, and an application that receives it."""
    rng = random.Random(1)
    nodes = [node.port for node in cluster.nodes]
    devices = [SocketClient(rng.choice(nodes), f"pump-{number:02}") for number in range(DEVICES)]
    heard = SocketClient(nodes[0], "dashboard", clean_start=False)
    heard.subscribe(("site/+/pump/+/state", 0), ("site/#", 0))
    for number, device in enumerate(devices):
        device.subscribe((f"site/{number % 4}/pump/{number:02}/set", 1))
        device.send(Publish(f"site/{number % 4}/pump/{number:02}/name", f"Pump {number}".encode(), retain=True))
    threading.Thread(target=read, args=(heard,), daemon=True).start()
    began = time.monotonic()
    while not stopped.wait(0.05):
        now = time.monotonic() - began
        load = 4 + 3 * math.sin(now / 9) + 2 * math.sin(now / 2.3)
        for _ in range(max(1, int(load))):
            number = rng.randrange(DEVICES)
            state = {"bar": round(2 + rng.gauss(0, 0.1), 2), "rpm": rng.randrange(900, 1500)}
            devices[number].send(Publish(f"site/{number % 4}/pump/{number:02}/state", json.dumps(state).encode()))
    for client in (*devices, heard):
        client.close()


def read(client: SocketClient) -> None:
    """Take what comes, until the connection ends."""
    with contextlib.suppress(OSError):
        while client.socket.recv(1 << 16):
            pass


def shoot(browser: Chromium, url: str) -> None:
    """All pictures."""
    browser.look(1180, 760)
    browser.open(f"{url}/#/overview")
    time.sleep(SECONDS)
    for name, view, width, dark in SHOTS:
        browser.look(width, 760, dark)
        browser.run("location.hash = arguments[0]", f"/{view}")
        browser.until("return document.querySelector('[data-view]')?.dataset.view === arguments[0]", view)
        time.sleep(4)
        if view == "topics":
            for level in ("site", "1", "pump", "01", "state"):
                browser.run(
                    "[...document.querySelectorAll('.tree .name')]"
                    ".findLast((name) => name.innerText === arguments[0] && name.checkVisibility())?.click()",
                    level,
                )
                time.sleep(0.3)
        time.sleep(1)
        browser.screenshot(DOCS / name, whole=view == "overview")
        size = (DOCS / name).stat().st_size
        assert size <= MAX_PICTURE_BYTES, f"{name} has {size} bytes"
        print(name, size)


def main() -> None:
    """Take them."""
    stopped = threading.Event()
    with tempfile.TemporaryDirectory() as place:
        cluster = ClusterProcess(Path(place), {"http.listen": "127.0.0.1:0"}, nodes="abc", orderly=False)
        with cluster, Chromium(Path(place)) as browser:
            fleet = threading.Thread(target=run, args=(cluster, stopped))
            fleet.start()
            try:
                shoot(browser, HttpClient(cluster["a"]).url)
            finally:
                stopped.set()
                fleet.join()


if __name__ == "__main__":
    main()
