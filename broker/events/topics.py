"""The topic names of events: `$SYS/broker/events/clients/CLIENT/KIND`, also behind the prefix of a tenant.

CLIENT is one level, for any client identifier (`Plans.reached`).
"""

from ..core.tenants import ROOT as TENANTS

ROOT = b"$SYS/broker/events/"
CLIENTS = ROOT + b"clients/"
OF_TENANT = TENANTS.encode()  # how client identifiers of tenants begin
