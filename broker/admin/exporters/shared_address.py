"""/metrics of nodes that share an address: whichever gets the request replies for all of them.

The kernel gives each scrape to one of them, so a page of one node would show another node's counters each time. A
node that does not reply in time is missing.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.calls import Arguments, RpcMethods
from ...rpc.node_view import NodeView
from . import prometheus

METHOD = "metrics"


def methods(node: NodeView) -> RpcMethods:
    """The method that the other nodes call."""

    def reply(_: Arguments) -> dict[str, Any]:
        return {"address": _address(node), "page": own_page(node)}

    return {METHOD: reply}


def own_page(node: NodeView) -> str:
    """The metrics of this node."""
    return prometheus.page(node.broker, node.version, node.name, node.links.described())


async def page(node: NodeView) -> str:
    """The metrics of all nodes that share the address."""
    if not (node.config.listen_shared and node.serving):
        return own_page(node)
    replies = (await node.broker.coordinator.nodes.call_all(METHOD, {})).values()
    here = _address(node)
    values = [reply.value for reply in replies if not reply.failure and reply.value["address"] == here]
    return merged(value["page"] for value in values)


def _address(node: NodeView) -> list[str]:
    """Equal for nodes that share it: machine, network namespace, and addresses."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, str(os.stat("/proc/self/ns/net").st_ino), *node.http_addresses]


def merged(pages: Iterable[str]) -> str:
    """One page out of the pages of several nodes: the rows of a metric are together, as the format requires."""
    rows: dict[str, list[str]] = {}  # by the name of the metric; its comments come first in each page
    for page in pages:
        for line in page.splitlines():
            name = line.split(" ", 3)[2] if line.startswith("# ") else line.partition("{")[0]
            found = rows.setdefault(name, [])
            if line not in found:  # the comments of another node
                found.append(line)
    return "".join(f"{line}\n" for found in rows.values() for line in found)
