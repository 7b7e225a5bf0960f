"""Runs the add-on: `python3 -m flockmq_addon [ROOT]`. Its exit status is that of the node.

The node's settings are environment variables: they count instead of the keys in /config/flockmq.toml, which is for all
that the add-on has no option for.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import Coroutine
from pathlib import Path

import aiohttp

from .bridge import Bridge
from .errors import AddonError, SupervisorError
from .options import node_settings, read_options
from .places import Places
from .supervisor import Config, Supervisor
from .users import ADDONS, HOME_ASSISTANT, system_passwords, write_users

MQTT_PORT = 1883  # in the container, the machine may publish it at another one
log = logging.getLogger(__name__)


async def run(places: Places, url: str, token: str) -> int:
    """Run a node until it ends; returns its exit status.

    Args:
        url: of the Supervisor's API.
        token: for it.

    Raises:
        AddonError: the node can't be started.
    """
    options, passwords = read_options(places), system_passwords(places)
    write_users(places, passwords, options.logins)
    await import_mosquitto(places)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        supervisor = Supervisor(http, url, token)
        bridge = Bridge(supervisor)
        # A variable of the container's environment counts more: config.yaml or the image may set it.
        environment = {**node_settings(options, places, await bridge.start()), **os.environ}
        node = await start_node(places, environment)
        announcing = asyncio.create_task(announce(http, supervisor, environment["FLOCKMQ_HTTP_LISTEN"], passwords))
        try:
            return await node.wait()
        finally:
            announcing.cancel()
            if supervisor.provides:
                await quietly(supervisor.withdraw(), "the service mqtt is withdrawn")
            await bridge.stop()


async def import_mosquitto(places: Places) -> None:
    """Take over the state of Mosquitto, if the user has put its file there, and there is no store yet.

    Raises:
        AddonError: it could not be taken over.
    """
    file = places.config / "mosquitto.db"
    if not file.exists() or places.store.exists():
        return
    log.info("taking over the messages and sessions of Mosquitto from %s", file)
    importing = await create_subprocess_exec("flockmq", "import", str(file), f"sqlite:{places.store}")
    if await importing.wait():
        for left in places.data.glob(f"{places.store.name}*"):
            left.unlink()
        raise AddonError(f"{file} could not be taken over; remove it to start without it")


async def start_node(places: Places, environment: dict[str, str]) -> Process:
    """Start the node. A signal that ends the add-on ends the node first."""
    file = places.config / "flockmq.toml"
    arguments = ["--config", str(file)] if file.exists() else []
    node = await create_subprocess_exec("flockmq", "serve", *arguments, env=environment)

    def end() -> None:
        if node.returncode is None:
            node.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    return node


async def announce(
    http: aiohttp.ClientSession, supervisor: Supervisor, http_listen: str, passwords: dict[str, str]
) -> None:
    """Tell Home Assistant and other add-ons where the node is, once it accepts clients."""
    await until_ready(http, f"http://127.0.0.1:{http_listen.rpartition(':')[2]}/readyz")

    def broker(user: str) -> Config:
        return {
            "host": socket.gethostname(),
            "port": MQTT_PORT,
            "ssl": False,
            "username": user,
            "password": passwords[user],
        }

    await quietly(supervisor.discover(broker(HOME_ASSISTANT)), "Home Assistant knows the broker")
    await quietly(supervisor.provide(broker(ADDONS)), "other add-ons get the broker as the service mqtt")


async def until_ready(http: aiohttp.ClientSession, url: str) -> None:
    """Wait until the node accepts clients."""
    while True:
        try:
            async with http.get(url) as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass  # it does not listen yet
        await asyncio.sleep(0.1)


async def quietly(request: Coroutine[None, None, None], done: str) -> None:
    """Wait for a request to the Supervisor: without it the node serves, too."""
    try:
        await request
        log.info(done)
    except SupervisorError as error:
        log.error("%s", error)


def main() -> int:
    """Run the add-on in the container, or below another root."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="add-on: %(message)s")
    places = Places(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/"))
    url = os.environ.get("SUPERVISOR_API", "http://supervisor")
    try:
        status = asyncio.run(run(places, url, os.environ["SUPERVISOR_TOKEN"]))
    except AddonError as error:
        log.error("%s", error)
        return 2
    return status if status >= 0 else 128 - status  # as shells report the number of a signal


if __name__ == "__main__":
    sys.exit(main())
