"""The health of a running node: a check for each thing that may fail next, with its remedy.

A check is a function in `CHECKS` that yields results. It reads the node, its machine, and the files of its
configuration, and changes nothing. *bad*: it fails, or is about to. *weak*: one more fault, or more load, and it fails.
*note*: for information. *ok*: nothing to do.
"""

import ctypes
import os
import platform
import resource
import shutil
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .audit import audit
from .config.schema import Config
from .coordination.coordinator import Risk
from .limits import LIMITS, Use

SEVERITIES = ("bad", "weak", "note", "ok")
ALMOST_FULL, FULL = 0.8, 0.95  # of a limit
MIN_FREE_DISK = 1 << 30  # bytes
MIN_FREE_MEMORY = 0.1  # part of the machine's, or of the container's
MIN_FILES = 4096
SLOW_STORE, SLOW_LOOP = 1.0, 0.5  # seconds
DAY = 86_400
EXPIRES_SOON = 30 * DAY  # seconds
TIME_ERROR = 5  # of adjtimex: the clock is not synchronized
BACKLOG = "net.core.somaxconn", 4096  # as deploy/sysctl has it
CGROUP = Path("/sys/fs/cgroup")
# Counters of lost messages, and of connections that were refused.
LOSSES = ("dropped_slow", "dropped_unlinked", "dropped_queue_full", "messages_too_large", "shared_discarded")


class Result(NamedTuple):
    """The result of a check."""

    check: str
    severity: str
    finding: str
    remedy: str = ""


class Examined(NamedTuple):
    """All that the checks read of a node."""

    config: Config
    version: str
    keeps: str  # where state is stored, in a sentence
    ready: tuple[bool, str]
    risks: Sequence[Risk]  # about the durability of the store
    uses: Sequence[Use]  # of LIMITS
    figures: dict[str, float]  # of METRICS
    oldest: dict[str, Any] | None  # the unacknowledged message that others have waited behind for the longest time


Results = Iterator[Result]


def examine(node: Examined) -> list[Result]:
    """The results of all checks, the worst first."""
    found = [result for check in CHECKS for result in check(node)]
    return sorted(found, key=lambda result: SEVERITIES.index(result.severity))


# ---- the checks ----


def versions(node: Examined) -> Results:
    yield Result(
        "versions",
        "ok",
        f"FlockMQ {node.version}, Python {platform.python_version()}, {ssl.OPENSSL_VERSION}, "
        f"{platform.system()} {platform.release()}",
    )


def readiness(node: Examined) -> Results:
    is_ready, reason = node.ready
    if not is_ready:
        yield Result("ready", "bad", f"no client can connect: {reason}", "the log of the node has more")


def durability(node: Examined) -> Results:
    for risk in node.risks:
        yield Result("store", "weak", *risk)
    if node.config.store.url == "memory" and not node.config.cluster.redis:
        yield Result("store", "note", node.keeps, "name a file: --store sqlite:PATH")
    elif not node.risks:
        yield Result("store", "ok", node.keeps)


def limits(node: Examined) -> Results:
    fullest = sorted(
        ((use.full, row, use) for row, use in zip(LIMITS, node.uses, strict=True) if use.full and not row.is_trimmed),
        key=lambda found: found[0],
        reverse=True,
    )
    for full, row, use in fullest:
        if full >= ALMOST_FULL:
            whose = f" ({row.scope} {use.whose})" if use.whose else ""
            yield Result(
                "limits",
                "bad" if full >= FULL else "weak",
                f"{row.name} is {full:.0%} full: {use.used} of {use.limit} {row.unit}{whose}. When it is reached: "
                f"{row.when_reached}",
                row.change,
            )
    if fullest and fullest[0][0] < ALMOST_FULL:
        full, row, use = fullest[0]
        yield Result("limits", "ok", f"the fullest is {row.name}, {full:.0%}: {use.used} of {use.limit} {row.unit}")


def descriptors(node: Examined) -> Results:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(MIN_FILES, node.config.limits.max_connections)
    if most < wanted:
        yield Result(
            "files",
            "weak",
            f"this process may have {most} descriptors, a connection takes one, and {wanted} may be needed",
            "LimitNOFILE= of the systemd unit, --ulimit of Docker, or `ulimit -n`",
        )
    else:
        yield Result("files", "ok", f"{most} descriptors")


def disk(node: Examined) -> Results:
    kind, _, path = node.config.store.url.partition(":")
    if kind != "sqlite" or node.config.cluster.redis:
        return
    try:
        free, size = shutil.disk_usage(Path(path).absolute().parent).free, Path(path).stat().st_size
    except OSError as error:
        yield Result(
            "disk",
            "bad",
            f"the store {path} can't be found: {error.strerror}; its state is lost when the node ends",
            "move it back before the node ends, or restore a backup: `flockmq restore`",
        )
        return
    if free < max(MIN_FREE_DISK, 2 * size):
        yield Result(
            "disk",
            "bad" if free < MIN_FREE_DISK // 8 else "weak",
            f"{free >> 20} MiB are free beside the store of {size >> 20} MiB; a full disk stops all acknowledgements, "
            "and a backup needs as much as the store",
            "make room, or move the store to another disk",
        )
    else:
        yield Result("disk", "ok", f"{free >> 30} GiB are free")


def memory(node: Examined) -> Results:
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in _read("/proc/meminfo").splitlines()}
    places = {"the machine": (found.get("MemAvailable", 0), found.get("MemTotal", 0))}
    limit = _read(CGROUP / "memory.max").strip()
    if limit.isdigit():
        places["the container"] = (int(limit) - int(_read(CGROUP / "memory.current") or 0), int(limit))
    for name, (free, total) in places.items():
        if total and free < MIN_FREE_MEMORY * total:
            yield Result(
                "memory",
                "weak",
                f"{free >> 20} MiB of the {total >> 20} MiB of {name} are available: the kernel may kill the node",
                "give it more, or lower the limits that `flockmq limits` shows",
            )


def kernel(node: Examined) -> Results:
    name, wanted = BACKLOG
    value = _read(f"/proc/sys/{name.replace('.', '/')}").strip()
    if value.isdigit() and int(value) < wanted:
        yield Result(
            "kernel",
            "note",
            f"{name} is {value}: when many clients connect at once, some time out",
            "deploy/sysctl/90-flockmq.conf",
        )
    count, most = (_read(f"/proc/sys/net/netfilter/nf_conntrack_{name}").strip() for name in ("count", "max"))
    if count.isdigit() and most.isdigit() and int(count) > ALMOST_FULL * int(most):
        yield Result(
            "kernel",
            "bad",
            f"the firewall tracks {count} of {most} connections; further ones are dropped, which only the kernel logs",
            f"sysctl net.netfilter.nf_conntrack_max={2 * int(most)}",
        )


def clock(node: Examined) -> Results:
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # no modes: it only reads
    if state == TIME_ERROR:
        yield Result(
            "clock",
            "weak",
            "the clock of this machine is not synchronized; certificates, tokens and the log of messages need its time",
            "run chrony or systemd-timesyncd",
        )
    elif state >= 0:
        yield Result("clock", "ok", "the clock of this machine is synchronized")


def certificates(node: Examined) -> Results:
    expires = node.figures["tls_certificate_expires"]
    left = expires - time.time()
    if expires and left > EXPIRES_SOON:  # else the audit has it
        yield Result("certificates", "ok", f"the first certificate expires in {left / DAY:.0f} days")


def speed(node: Examined) -> Results:
    latency, lag = node.figures["store_latency_seconds"], node.figures["loop_lag_seconds"]
    if latency > SLOW_STORE:
        yield Result(
            "speed",
            "weak",
            f"the store took {latency:.1f} s to keep something; acknowledgements wait for it",
            "a faster disk, or a Redis that is nearer; store.sync and appendfsync are in deploy/docs/RUNBOOK.md",
        )
    if lag > SLOW_LOOP:
        yield Result(
            "speed",
            "weak",
            f"the node was busy for {lag:.1f} s when its clock was due",
            "a faster core, or more nodes; hooks must not block",
        )


def clients(node: Examined) -> Results:
    stuck = int(node.figures["sessions_stuck"])
    if stuck:
        more = ""
        if node.oldest is not None:
            more = (
                f"; {node.oldest['client_id']} for the longest time, {node.oldest['seconds']} s, with a message of "
                f"{node.oldest['topic']}"
            )
        yield Result(
            "clients",
            "weak",
            f"messages of {stuck} clients wait behind one that the client does not acknowledge{more}",
            "`flockmq trace --client ID` shows its packets; closing its connection sends the message again",
        )
    lost = {name: int(node.figures[name]) for name in LOSSES if node.figures.get(name)}
    if lost:
        figures = ", ".join(f"{name} {count}" for name, count in lost.items())
        yield Result(
            "clients",
            "note",
            f"messages were lost since the start: {figures}",
            "/metrics describes each figure; `flockmq limits` shows which limit was reached",
        )


def configuration(node: Examined) -> Results:
    found = audit(node.config)
    for finding in found:
        yield Result("configuration", finding.severity, f"{finding.where}: {finding.what}", finding.way_out)
    if not found:
        yield Result("configuration", "ok", "no weakness is known")


def _read(path: str | os.PathLike[str]) -> str:
    """The text of a file of the kernel; empty: this one has none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


CHECKS: tuple[Callable[[Examined], Results], ...] = (
    versions,
    readiness,
    durability,
    limits,
    descriptors,
    disk,
    memory,
    kernel,
    clock,
    certificates,
    speed,
    clients,
    configuration,
)
