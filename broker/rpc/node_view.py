"""The part of a node that its API, its exporters and the calls of other nodes read."""

from typing import Protocol

from ..auth.access_control import AccessControl
from ..broker import Broker
from ..config.schema import Config
from ..core.audit_log import AuditLog
from ..links.links import Links
from ..listeners.listeners import Listeners


class NodeView(Protocol):
    """A node, to be read. After a rejoin `broker` is another object: look it up each time."""

    @property
    def name(self) -> str:
        """Name of the node."""

    @property
    def version(self) -> str:
        """Version of FlockMQ."""

    @property
    def config(self) -> Config:
        """Configuration in force."""

    @property
    def broker(self) -> Broker:
        """Protocol side of the node."""

    @property
    def audit_log(self) -> AuditLog:
        """Audit log; another object after a rejoin."""

    @property
    def access(self) -> AccessControl:
        """Users and rules of the node."""

    @property
    def listeners(self) -> Listeners:
        """Listeners of the node."""

    @property
    def links(self) -> Links:
        """Links of the node."""

    @property
    def serving(self) -> bool:
        """Whether the node has started and accepts clients."""

    @property
    def http_addresses(self) -> list[str]:
        """Addresses of its HTTP server."""
