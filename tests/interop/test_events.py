"""Events of states and methods for fetchers of each version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.node import JetError, NodeBus, Peer, Transport, Version, event

if TYPE_CHECKING:
    from interop.conftest import FreshNode

pytestmark = pytest.mark.interop

VALUES: dict[str, Any] = {
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -17,
    "above 31 bits": 2**31 + 4,
    "above 32 bits": 2**32 + 4,
    "largest of JavaScript": 2**53 - 1,
    "smallest of JavaScript": 1 - 2**53,
    "fraction": 0.1,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "empty text": "",
    "text": 'Grüße "aus" der Küche\n温度 🔥 \u2028 \\ / \u0001',
    "long text": "0123456789abcdef" * 8192,
    "empty array": [],
    "empty object": {},
    "nested": {"a": [1, {"b": None}, [[]]], "": {"ключ": False}},
}


def test_a_fetch_follows_the_life_of_a_state(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A state's add, change and remove reach a fetcher in that order, in the words of its version."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    owner.add_state("pump/speed", 100)
    owner.change("pump/speed", 120)
    owner.remove("pump/speed")
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 100),
        event(client, "change", "pump/speed", 120),
        event(client, "remove", "pump/speed", 120),
    ]


def test_the_initial_events_are_complete(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A new fetch tells of every state that exists, in the order in which they were added."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    paths = [f"cell/{number * 37 % 200}" for number in range(200)]
    owner.do("batch", steps=[{"op": "addState", "path": path, "value": path} for path in paths])
    events = client.fetch(("path", "startsWith", "cell/")).seen()
    assert [(received["path"], received["value"]) for received in events] == [(path, path) for path in paths]


def test_no_event_is_lost_behind_the_initial_ones(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Changes while a fetch begins are reported once, after the initial event of that state."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 0)
    changes = [owner.begin("change", path="pump/speed", value=value) for value in range(1, 101)]
    fetch = client.fetch(("path", "equals", "pump/speed"))
    for change in changes:
        change.result()
    events = fetch.seen(owner)
    first = events[0]["value"]
    assert events[0] == event(client, "add", "pump/speed", first)
    assert events[1:] == [event(client, "change", "pump/speed", value) for value in range(first + 1, 101)]


def test_a_fetch_without_rules_tells_of_everything(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A fetch without rules tells of all states of all peers, and of nothing else."""
    owners = [bus.peer(version, transport) for _ in range(3)]
    for number, owner in enumerate(owners):
        owner.add_state(f"cell/{number}", number)
    client = bus.peer(version, transport)
    assert client.fetch().seen() == [event(client, "add", f"cell/{number}", number) for number in range(3)]


def test_methods_are_told_without_a_value(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A method's events have no value."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_method("pump/start")
    fetch = client.fetch(("path", "startsWith", "pump/"))
    owner.add_method("pump/stop")
    owner.remove("pump/stop")
    assert fetch.seen(owner) == [
        event(client, "add", "pump/start"),
        event(client, "add", "pump/stop"),
        event(client, "remove", "pump/stop"),
    ]


def test_node_jet_3_is_told_of_states_only(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A node-jet 3 fetcher hears nothing of methods, whoever owns them."""
    owner, client = bus.peer(version, transport), bus.peer(3, transport)
    owner.add_method("pump/start")
    fetch = client.fetch(("path", "startsWith", "pump/"))
    owner.add_method("pump/stop")
    owner.add_state("pump/speed", 1)
    owner.remove("pump/stop")
    assert fetch.seen(owner) == [event(client, "add", "pump/speed", 1)]


def test_values_arrive_as_they_were_added(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Every value that JavaScript can write in JSON reaches the fetchers of a new state unchanged."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    for name, value in VALUES.items():
        owner.add_state(name, value)
    assert client.fetch().seen() == [event(client, "add", name, value) for name, value in VALUES.items()]


def test_values_arrive_as_they_were_changed(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Every value that JavaScript can write in JSON reaches the fetchers of a changed state unchanged."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("cell", "start")
    fetch = client.fetch()
    for value in VALUES.values():
        owner.change("cell", value)
    assert fetch.seen(owner) == [
        event(client, "add", "cell", "start"),
        *(event(client, "change", "cell", value) for value in VALUES.values()),
    ]


def test_null_is_a_value(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A state may be added as null and set to null: it stays a state, and its events carry the null."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/target", None)
    fetch = client.fetch(("path", "equals", "pump/target"))
    client.set("pump/target", 1)
    client.set("pump/target", None)
    assert fetch.seen(owner) == [
        event(client, "add", "pump/target", None),
        event(client, "change", "pump/target", 1),
        event(client, "change", "pump/target", None),
    ]


@pytest.mark.parametrize(
    "path",
    [
        "Küche/Öfen/größe",
        "厨房/温度",
        "🔥/🧯",
        'a "quoted" \\ path',
        "with\ttab and \u2028",
        " ",
        "a//b/",
        "1",
        "$own",
    ],
)
def test_any_text_is_a_path(bus: NodeBus, version: Version, transport: Transport, path: str) -> None:
    """A path may hold any text: it is added, fetched, set, read and removed under exactly this text."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    fetch = client.fetch(("path", "equals", path))
    owner.add_state(path, 1)
    client.set(path, 2)
    assert [(received["path"], received["value"]) for received in client.get(path={"equals": path})] == [(path, 2)]
    owner.remove(path)
    assert fetch.seen(owner) == [
        event(client, "add", path, 1),
        event(client, "change", path, 2),
        event(client, "remove", path, 2),
    ]


def test_a_fetch_only_state_says_so(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A state that its owner does not let anybody set is added with fetchOnly; later events do not repeat it."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/old", 1, handler=None)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    owner.add_state("pump/new", 2, handler=None)
    owner.change("pump/new", 3)
    owner.add_state("pump/open", 4)
    assert fetch.seen(owner) == [
        event(client, "add", "pump/old", 1, fetchOnly=True),
        event(client, "add", "pump/new", 2, fetchOnly=True),
        event(client, "change", "pump/new", 3),
        event(client, "add", "pump/open", 4),
    ]


def test_states_above_states(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A component and its children may all be states, in whatever order they are added."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump", 1)
    fetch = client.fetch(("path", "startsWith", "pump"))
    owner.add_state("pump/motor/speed", 2)
    owner.add_state("pump/motor", 3)
    owner.remove("pump")
    assert fetch.seen(owner) == [
        event(client, "add", "pump", 1),
        event(client, "add", "pump/motor/speed", 2),
        event(client, "add", "pump/motor", 3),
        event(client, "remove", "pump", 1),
    ]


def test_an_equal_value_is_news_again(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """An owner that publishes the same value again is heard again."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "equals", "pump/speed"))
    owner.change("pump/speed", 1)
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 1),
        event(client, "change", "pump/speed", 1),
    ]


def test_a_change_can_be_confirmed(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A change sent as a request is answered with true."""
    owner = bus.peer(classic, transport)
    owner.add_state("pump/speed", 1)
    assert owner.do("change", path="pump/speed", value=2, confirmed=True) is True


def test_a_removed_path_can_be_added_again(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A path that was removed is free again, for any peer."""
    first, second, client = (bus.peer(version, transport) for _ in range(3))
    fetch = client.fetch(("path", "equals", "pump/speed"))
    first.add_state("pump/speed", 1)
    first.remove("pump/speed")
    second.add_state("pump/speed", "fast")
    assert fetch.seen(first, second) == [
        event(client, "add", "pump/speed", 1),
        event(client, "remove", "pump/speed", 1),
        event(client, "add", "pump/speed", "fast"),
    ]


def test_a_peer_fetches_its_own_states(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A peer hears of its own states like any other fetcher."""
    peer = bus.peer(version, transport)
    peer.add_state("pump/speed", 1)
    fetch = peer.fetch(("path", "startsWith", "pump/"))
    peer.change("pump/speed", 2)
    peer.set("pump/speed", 3)
    peer.remove("pump/speed")
    assert fetch.seen() == [
        event(peer, "add", "pump/speed", 1),
        event(peer, "change", "pump/speed", 2),
        event(peer, "change", "pump/speed", 3),
        event(peer, "remove", "pump/speed", 3),
    ]


def test_the_fetches_of_a_peer_are_independent(bus: NodeBus, version: Version, transport: Transport) -> None:
    """Each fetch of a peer hears what its own rule matches; ending one leaves the others."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    pumps = client.fetch(("path", "startsWith", "pump/"))
    speeds = client.fetch(("path", "endsWith", "/speed"))
    owner.add_state("pump/speed", 1)
    owner.add_state("pump/heat", 2)
    owner.add_state("fan/speed", 3)
    assert [received["path"] for received in pumps.seen(owner)] == ["pump/speed", "pump/heat"]
    assert [received["path"] for received in speeds.seen(owner)] == ["pump/speed", "fan/speed"]
    pumps.unfetch()
    owner.change("pump/speed", 4)
    assert speeds.seen(owner) == [event(client, "change", "pump/speed", 4)]
    assert pumps.seen() == []


def test_nothing_is_told_after_unfetch(bus: NodeBus, version: Version, transport: Transport) -> None:
    """After unfetch there are no more frames of that fetch, and the peer may fetch anew."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "equals", "pump/speed"))
    fetch.unfetch()
    frames = len(client.frames)
    owner.change("pump/speed", 2)
    owner.info()
    client.info()
    assert len(client.frames) == frames + 2, "an info and its answer only"
    assert client.fetch(("path", "equals", "pump/speed")).seen() == [event(client, "add", "pump/speed", 2)]


def test_a_fetch_may_be_a_notification(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A fetch that asks for no answer gets none, and all its events."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "equals", "pump/speed"), as_notification=True)
    client.info()
    owner.change("pump/speed", 2)
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 1),
        event(client, "change", "pump/speed", 2),
    ]


def test_a_fetcher_can_begin_again(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A Fetcher that was ended can be used again and is told everything anew."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "equals", "pump/speed"))
    fetch.unfetch()
    owner.change("pump/speed", 2)
    owner.info()
    fetch.refetch()
    owner.change("pump/speed", 3)
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 1),
        event(client, "add", "pump/speed", 2),
        event(client, "change", "pump/speed", 3),
    ]


def test_a_fetcher_can_begin_again_in_a_hurry(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A fetch, its end and its new beginning sent without waiting leave the fetch working."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "equals", "pump/speed"))
    fetch.seen()
    steps = [{"op": op, "fetch": fetch.name} for op in ("unfetch", "refetch", "unfetch", "refetch")]
    assert client.do("batch", steps=steps) == [{"result": None}] * 4
    fetch.seen()
    owner.change("pump/speed", 2)
    assert fetch.seen(owner) == [event(client, "change", "pump/speed", 2)]


def test_a_fetch_id_is_used_once(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A fetch under an id that the peer uses already is refused, and the first one goes on."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    fetch = client.fetch(("path", "equals", "pump/speed"))
    with pytest.raises(JetError) as refused:
        fetch.refetch()
    assert refused.value.code == -32602
    owner.add_state("pump/speed", 1)
    assert fetch.seen(owner) == [event(client, "add", "pump/speed", 1)]


def test_an_ended_fetch_cannot_be_ended(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """Ending a fetch that does not exist any more is refused."""
    fetch = bus.peer(classic, transport).fetch(("path", "equals", "pump/speed"))
    fetch.unfetch()
    with pytest.raises(JetError) as refused:
        fetch.unfetch()
    assert refused.value.code == -32602


def test_peers_with_equal_fetch_ids(bus: NodeBus, transport: Transport, fresh_node: FreshNode) -> None:
    """Peers that use the same fetch ids are each told everything in order, also around their own requests."""
    owner = bus.peer(2, transport)
    owner.add_state("pump/speed", 0)
    versions: tuple[Version, ...] = (1, 2, 1)
    clients = [bus.peer(version, transport, node=fresh_node(version)) for version in versions]
    fetches = [client.fetch(("path", "startsWith", "pump/")) for client in clients]
    for value in range(1, 31):
        if value == 11:
            fetches[0].unfetch()
        if value == 21:
            fetches[0].refetch()
        if value % 3:
            owner.change("pump/speed", value)
        else:
            clients[value // 3 % 3].set("pump/speed", value)
        owner.info()

    def received(client: Peer, first: int, last: int) -> list[dict[str, Any]]:
        changes = (event(client, "change", "pump/speed", value) for value in range(first + 1, last + 1))
        return [event(client, "add", "pump/speed", first), *changes]

    assert fetches[0].seen(owner) == received(clients[0], 0, 10) + received(clients[0], 20, 30)
    assert fetches[1].seen(owner) == received(clients[1], 0, 30)
    assert fetches[2].seen(owner) == received(clients[2], 0, 30)
    assert {_fetch_id(client) for client in clients} == {"__f__1"}


def _fetch_id(client: Peer) -> str:
    sent = next(frame for frame in client.frames if frame.startswith("sent") and '"fetch"' in frame)
    fetch_id: str = json.loads(sent.removeprefix("sent"))["params"]["id"]
    return fetch_id


def test_descriptions_change_nothing_for_node_jet(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A state with schema, time and quality looks to node-jet like any other, and so does one that is stale."""
    client = bus.peer(version, transport)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    with bus.daemon.connect() as owner, bus.daemon.connect() as watcher:
        watcher.result("fetch", {"id": "f", "meta": True})
        schema = {"unit": "rpm", "maximum": 3000, "stale": 0.05}
        described = {"schema": schema, "check": "schema", "ts": 1_000_000, "quality": "bad"}
        owner.result("add", {"path": "pump/speed", "value": 1, **described})
        owner.result("change", {"path": "pump/speed", "value": 2, "ts": 2_000_000, "quality": "uncertain"})
        while not watcher.receive()["params"].get("stale"):
            pass
        owner.result("change", {"path": "pump/speed", "schema": {"unit": "1/min"}})
        owner.result("change", {"path": "pump/speed", "value": 3, "ts": 1_500_000, "past": True})
        owner.result("change", {"path": "pump/speed", "value": 4, "schema": {}})
        owner.result("remove", {"path": "pump/speed"})
    assert fetch.seen() == [
        event(client, "add", "pump/speed", 1),
        event(client, "change", "pump/speed", 2),
        event(client, "change", "pump/speed", 4),
        event(client, "remove", "pump/speed", 4),
    ]
