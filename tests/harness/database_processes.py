"""Real PostgreSQL, MariaDB, ClickHouse and InfluxDB, each in a directory; they can be killed and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from tests.harness.broker_process import until
from tests.harness.certificates import Pair
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

POSTGRESQL = Path("/usr/lib/postgresql")  # Debian's; each version has a folder


class DatabaseProcess(ABC):
    """A server with its data in a directory of /tmp, which `close` deletes."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="flockmq-db-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._user: str | None = None  # the server runs as this user

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts the server."""

    @abstractmethod
    def accepts(self) -> bool:
        """Whether it replies."""

    def start(self) -> None:
        """Start it, and wait until it replies."""
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, user=self._user, cwd=self.directory, start_new_session=True
            )
        until(self._is_there, f"{type(self).__name__} replies")

    def _is_there(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()[-3000:]
        return self.accepts()

    def kill(self) -> None:
        """kill -9, with all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DEADLINE)
            self._process = None

    def close(self) -> None:
        """End it, and delete its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class PostgreSqlProcess(DatabaseProcess):
    """A PostgreSQL that listens on a Unix socket, and on a port if it has a certificate.

    Args:
        certificate: of the server.
    """

    def __init__(self, certificate: Pair | None = None) -> None:
        super().__init__()
        self.port = free_port() if certificate else 0
        self._user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        self._data = self.directory / "data"
        self._data.mkdir()
        if self._user is not None:
            shutil.chown(self.directory, self._user)
            shutil.chown(self._data, self._user)
        made = [self._program("initdb"), "-D", str(self._data), "-A", "trust", "-U", "flockmq", "-N", "-E", "UTF8"]
        subprocess.run(made, check=True, capture_output=True, user=self._user, cwd=self.directory)
        self.url = f"postgresql://flockmq@/postgres?host={self.directory}"
        self.url += f"&port={self.port}" if self.port else ""  # also a part of the name of the Unix socket
        if certificate is not None:
            for name, path in (("server.crt", certificate.cert), ("server.key", certificate.key)):
                shutil.copy(path, self._data / name)
                shutil.chown(self._data / name, self._user or os.geteuid())
                (self._data / name).chmod(0o600)

    @staticmethod
    def _program(name: str) -> str:
        found = sorted(POSTGRESQL.glob(f"*/bin/{name}"))
        return str(found[-1]) if found else name

    def command(self) -> list[str]:
        options = {"listen_addresses": "", "unix_socket_directories": str(self.directory), "fsync": "off"}
        if self.port:
            options |= {"listen_addresses": "127.0.0.1", "port": str(self.port), "ssl": "on"}
        listed = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", str(self._data), *listed]

    def accepts(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, or of a command that has none."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []


class MariaDbProcess(DatabaseProcess):
    """A MariaDB that listens on a Unix socket, and on a port if it has a certificate; its user root has no password.

    Args:
        certificate: of the server.
    """

    def __init__(self, certificate: Pair | None = None) -> None:
        super().__init__()
        self.socket = str(self.directory / "socket")
        self.port = free_port() if certificate else 0
        self._certificate = certificate
        # Servers that share a folder of temporary files delete each other's.
        self._common = ["--no-defaults", f"--datadir={self.directory}/data", f"--tmpdir={self.directory}"]
        if os.geteuid() == 0:
            self._common.append("--user=root")
        made = ["mariadb-install-db", *self._common, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(made, check=True, capture_output=True, cwd=self.directory)
        self.url = f"mysql://root@localhost/mqtt?socket={self.socket}"

    def command(self) -> list[str]:
        program = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin") or "mariadbd"
        options = [
            f"--socket={self.socket}",
            f"--pid-file={self.directory}/pid",
            "--innodb-buffer-pool-size=16M",
            "--character-set-server=utf8mb4",
        ]
        if self._certificate is None:
            options.append("--skip-networking")
        else:
            options += ["--bind-address=127.0.0.1", f"--port={self.port}"]
            options += [f"--ssl-cert={self._certificate.cert}", f"--ssl-key={self._certificate.key}"]
        return [program, *self._common, *options, "--innodb-flush-log-at-trx-commit=2"]

    def accepts(self) -> bool:
        try:
            self.rows("CREATE DATABASE IF NOT EXISTS mqtt", database=None)
        except pymysql.OperationalError:
            return False
        return True

    def rows(self, query: str, database: str | None = "mqtt") -> list[tuple[Any, ...]]:
        """The rows of a query, or of a command that has none."""
        options = {"unix_socket": self.socket, "user": "root", "database": database, "charset": "utf8mb4"}
        with pymysql.connect(**options, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


class HttpDatabase(DatabaseProcess):
    """A server that replies to HTTP."""

    path = "/ping"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def accepts(self) -> bool:
        try:
            return bool(urllib.request.urlopen(self.url + self.path, timeout=DEADLINE).status < 300)
        except OSError:
            return False

    def ask(self, path: str, body: bytes | None = None) -> str:
        """The reply to a request."""
        with urllib.request.urlopen(self.url + path, body, timeout=DEADLINE) as reply:
            return str(reply.read().decode())


class ClickHouseProcess(HttpDatabase):
    """A ClickHouse."""

    def command(self) -> list[str]:
        data = self.directory / "data"
        config = f"""<yandex><logger><level>warning</level></logger><listen_host>127.0.0.1</listen_host>
            <http_port>{self.port}</http_port><tcp_port>{free_port()}</tcp_port><path>{data}/</path>
            <tmp_path>{data}/tmp/</tmp_path><mark_cache_size>5368709120</mark_cache_size>
            <users_config>users.xml</users_config><default_profile>default</default_profile>
            <default_database>default</default_database></yandex>"""
        users = """<yandex><profiles><default/></profiles><quotas><default/></quotas><users><default>
            <password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>
            <quota>default</quota></default></users></yandex>"""
        (self.directory / "users.xml").write_text(users)
        path = self.directory / "config.xml"
        path.write_text(config)
        program = shutil.which("clickhouse-server", path=f"{os.environ['PATH']}:/usr/sbin")
        return [program or "clickhouse-server", f"--config-file={path}"]

    def rows(self, query: str) -> list[tuple[str, ...]]:
        """The rows of a query, or of a command that has none."""
        return [tuple(line.split("\t")) for line in self.ask("/", query.encode()).splitlines()]


class InfluxDbProcess(HttpDatabase):
    """An InfluxDB 1."""

    def command(self) -> list[str]:
        config = f"""reporting-disabled = true
            bind-address = "127.0.0.1:{free_port()}"
            [meta]
            dir = "{self.directory}/meta"
            [data]
            dir = "{self.directory}/data"
            wal-dir = "{self.directory}/wal"
            [http]
            bind-address = "127.0.0.1:{self.port}"
            log-enabled = false
            [monitor]
            store-enabled = false
            """
        path = self.directory / "influxdb.conf"
        path.write_text(config)
        return ["influxd", "-config", str(path)]
