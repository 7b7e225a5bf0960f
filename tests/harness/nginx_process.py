"""A real nginx before the HTTP server of a node. It connects from another address, 127.0.0.2."""

import socket
import subprocess
from pathlib import Path

from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port

ADDRESS = "127.0.0.2"  # of nginx, as the node sees it
CONFIGURATION = """
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{node};
            proxy_bind {address};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
}}
"""


class NginxProcess:
    """A reverse proxy.

    Args:
        directory: for its files.
        node: port of the node's HTTP server on 127.0.0.1.
    """

    def __init__(self, directory: Path, node: int) -> None:
        self.port = free_port()
        file = directory / "nginx.conf"
        file.write_text(CONFIGURATION.format(directory=directory, port=self.port, node=node, address=ADDRESS))
        self._log = directory / "nginx.log"
        command = ["/usr/sbin/nginx", "-e", str(self._log), "-p", str(directory), "-c", str(file)]
        self._process = subprocess.Popen(command)
        until(self._answers, "nginx answers")

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(DEADLINE)
