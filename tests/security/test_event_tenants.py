"""Events of tenants: each tenant has those of its clients, under the names that they know, and operators have all."""

import json
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Publish
from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.test_tenant_isolation import client, messages, start_tenants

pytestmark = pytest.mark.parametrize("store", ["sqlite", "cluster"])
ROOT = "$SYS/broker/events/"


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> Broker:
    return start_tenants(start_broker, tmp_path, events__of_tenants=True)


def events(reader: SocketClient, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Topics and payloads of the events of a client that have come."""
    found = [(topic, json.loads(payload)) for topic, payload in messages(reader)]
    return [(topic, event) for topic, event in found if name in event["client_id"]]


def test_each_has_its_own(broker: Broker) -> None:
    readers = {name: client(broker, name, "reader", 5) for name in ("acme", "globex", "")}
    for reader in readers.values():
        assert reader.subscribe((ROOT + "#", 1)) == [1]
    device = client(broker, "acme", "dev/1", 5)
    device.subscribe(("site/+", 1))
    device.close()
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {name: [] for name in readers}
    until(
        lambda: found["acme"].extend(events(readers["acme"], "dev/1")) or len(found["acme"]) == 5  # type: ignore[func-returns-value]
    )
    until(lambda: found[""].extend(events(readers[""], "dev/1")) or len(found[""]) == 5)  # type: ignore[func-returns-value]
    assert {topic for topic, _ in found["acme"]} == {
        f"{ROOT}clients/dev%2F1/{kind}"
        for kind in ("session_created", "connected", "subscribed", "disconnected", "session_ended")
    }
    own = {event["event"]: event for _, event in found["acme"]}
    assert {event["client_id"] for event in own.values()} == {"dev/1"}
    assert own["subscribed"]["subscriptions"] == [{"filter": "site/+", "qos": 1}]
    assert "tenant" not in json.dumps(own) and not any("node" in event for event in own.values())
    whole = {event["event"]: event for _, event in found[""]}
    assert {event["client_id"] for event in whole.values()} == {"$tenant/acme/dev/1"}
    assert whole["subscribed"]["subscriptions"] == [{"filter": "$tenant/acme/site/+", "qos": 1}]
    assert f"{ROOT}clients/$tenant%2Facme%2Fdev%2F1/connected" in {topic for topic, _ in found[""]}
    assert events(readers["globex"], "dev/1") == []


FILTERS = (
    "$SYS/#",
    "$SYS/+/events/clients/+/+",
    "+/+/events/#",
    "+/broker/+/clients/#",
    "#",
    ROOT + "#",
    ROOT + "clients/$tenant%2Fglobex%2Fvictim/+",
    ROOT + "clients/victim/+",
    "$tenant/globex/" + ROOT + "#",
    "$tenant/+/" + ROOT + "#",
    "$share/g/$tenant/globex/" + ROOT + "#",
    "$share/g/" + ROOT + "#",
)


@pytest.mark.one_node
@pytest.mark.parametrize("tenant", ["acme", ""])
def test_an_attacker_sees_no_event_of_a_neighbour(start_broker: StartBroker, tmp_path: Path, tenant: str) -> None:
    """Also a client without a tenant, unless the configuration lets such clients see the tenants' clients."""
    broker = start_tenants(start_broker, tmp_path)
    attackers = [client(broker, tenant, f"attacker{number}", 5) for number in range(len(FILTERS))]
    for attacker, topic_filter in zip(attackers, FILTERS, strict=True):
        attacker.subscribe((topic_filter, 1))
    victim = client(broker, "globex", "victim", 5)
    victim.subscribe(("secret", 1))
    victim.close()
    client(broker, "globex", "last", 5).ping()
    for attacker in attackers:
        seen = [json.loads(payload)["client_id"] for topic, payload in messages(attacker) if topic.startswith(ROOT)]
        assert all(name.startswith("attacker") for name in seen), seen


@pytest.mark.one_node
def test_a_storm_of_one_tenant_takes_no_event_of_another(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_tenants(start_broker, tmp_path, events__rate=8)
    reader = client(broker, "globex", "reader", 5)
    reader.subscribe((ROOT + "#", 1))
    noisy = client(broker, "acme", "noisy-reader", 5)
    noisy.subscribe((ROOT + "#", 0))
    for number in range(30):
        client(broker, "acme", f"noise{number}").close()
    client(broker, "globex", "quiet").close()
    found: list[str] = []
    until(lambda: found.extend(event["event"] for _, event in events(reader, "quiet")) or "connected" in found)  # type: ignore[func-returns-value]
    left_out: list[dict[str, Any]] = []

    def suppressed() -> bool:
        packets = [packet for packet in noisy.ping() if isinstance(packet, Publish)]
        left_out.extend(json.loads(each.payload) for each in packets if each.topic_name == ROOT + "suppressed")
        return bool(left_out)

    until(suppressed)
    assert left_out[0]["events"]["connected"] > 0 and "node" not in left_out[0]


def test_a_refused_tenant_client_is_known_to_its_tenant_only_when_it_is_known(broker: Broker) -> None:
    """Before a client has authenticated nobody knows its tenant: its event is the operators'."""
    readers = {name: client(broker, name, "reader", 5) for name in ("acme", "")}
    for reader in readers.values():
        reader.subscribe((ROOT + "clients/+/refused", 1))
    with pytest.raises(ConnectionError):
        SocketClient(broker.port, "bad", username="acme-device", password=b"x").ping()
    found: list[Any] = []
    until(lambda: found.extend(events(readers[""], "bad")) or found)  # type: ignore[func-returns-value]
    assert found[0][1]["client_id"] == "bad"
    assert events(readers["acme"], "bad") == []
