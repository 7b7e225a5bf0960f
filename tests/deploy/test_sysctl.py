"""deploy/sysctl: the kernel has every setting, and each fits the project's other files."""

import re
from pathlib import Path

from flockmq.broker.listeners.listeners import BACKLOG

FILE = Path("deploy/sysctl/90-flockmq.conf").resolve()
UNIT = Path("deploy/systemd/flockmq.service").resolve()


def settings() -> dict[str, list[int]]:
    """Key, with "-" if a kernel may lack it -> values."""
    found = re.findall(r"^(-?[\w.-]+) = ([\d ]+)$", FILE.read_text(), re.MULTILINE)
    return {key: [int(value) for value in values.split()] for key, values in found}


def test_every_line_is_a_setting_or_a_comment() -> None:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(settings())


def test_the_kernel_has_them_with_as_many_values() -> None:
    for key, values in settings().items():
        path = Path("/proc/sys", *key.lstrip("-").split("."))
        if not key.startswith("-") or path.exists():
            assert len(path.read_text().split()) == len(values), key


def test_they_fit_the_node() -> None:
    assert settings()["net.core.somaxconn"][0] >= BACKLOG
    limit = re.search(r"^LimitNOFILE=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert limit
    assert int(limit[1]) <= settings()["fs.nr_open"][0]
    assert settings()["net.ipv4.ip_local_port_range"][0] > 8080
