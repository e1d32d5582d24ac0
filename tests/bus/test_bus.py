"""The bus without sockets: order of what is told, sessions that are held, owners that are lost, hidden elements."""

from __future__ import annotations

import gc
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from jetbus.bus.access import Auth
from jetbus.bus.bus import Bus
from jetbus.bus.conditions import Condition
from jetbus.bus.fetches import FetchOptions, PendingFetch
from jetbus.bus.limits import Limits
from jetbus.daemon.users import Users
from jetbus.errors import JetError
from jetbus.rules import EVERYTHING
from support.inmemory import Peer

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture
def bus() -> Bus:
    return Bus()


def _short(message: dict[str, Any]) -> str:
    """A message in a few letters: `fetch event path value`, `result id`, `error id` or `routed method`."""
    if "method" not in message:
        return f"{'result' if 'result' in message else 'error'} {message.get('id')}"
    params = message["params"]
    if "event" in params:
        return " ".join(str(word) for word in (message["method"], params["event"], params["path"], params.get("value")))
    return f"routed {message['method']}"


def _received(peer: Peer) -> list[str]:
    return [_short(message) for message in peer.received()]


# The order of a fetch.

ORDERS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "text as fetch id": ("f", {}, False),
    "number as fetch id": (1, {}, True),
    "fraction as fetch id": (1.5, {}, True),
    "text and jsonrpc": ("f", {"jsonrpc": "2.0"}, True),
    "number and jsonrpc": (7, {"jsonrpc": "2.0"}, True),
    "other jsonrpc": ("f", {"jsonrpc": "1.0"}, False),
}


@pytest.mark.parametrize(("fetch_id", "extra", "events_first"), ORDERS.values(), ids=ORDERS)
def test_order_of_a_fetch(bus: Bus, fetch_id: Any, extra: dict[str, Any], events_first: bool) -> None:
    """The first events come before the response for a numeric fetch id or ``jsonrpc``, otherwise after it."""
    owner, fetcher = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "a", "value": 1})
    owner.notify("add", {"path": "b", "value": 2})
    fetcher.send({"id": 9, **extra, "method": "fetch", "params": {"id": fetch_id}})
    events = [f"{fetch_id} add a 1", f"{fetch_id} add b 2"]
    assert _received(fetcher) == ([*events, "result 9"] if events_first else ["result 9", *events])


def test_order_of_a_legacy_fetch(bus: Bus) -> None:
    """A fetch of 2012 gets nodes, then leaves, then the response."""
    owner, fetcher = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "a/b/c", "value": 1})
    fetcher.send({"id": 9, "method": "fetch", "params": ["all", ".*"]})
    assert _received(fetcher) == ["all add a None", "all add a/b None", "all add a/b/c None", "result 9"]


def test_initial_events_in_order_of_creation(bus: Bus) -> None:
    """Existing elements are announced in the order in which they were added, whoever added them."""
    one, two, fetcher = Peer(bus), Peer(bus), Peer(bus)
    for peer, path in ((one, "z"), (two, "a"), (one, "m"), (two, "b")):
        peer.notify("add", {"path": path, "value": 0})
    one.notify("remove", {"path": "z"})
    one.notify("add", {"path": "z", "value": 0})
    assert [event["path"] for event in fetcher.fetch()] == ["a", "m", "b", "z"]


def test_own_events_come_before_the_response(bus: Bus) -> None:
    """A peer that fetches what it owns is told of its doing before it is answered."""
    peer = Peer(bus)
    peer.fetch("f")
    for method, params in (
        ("add", {"path": "a", "value": 1}),
        ("change", {"path": "a", "value": 2}),
        ("remove", {"path": "a"}),
    ):
        peer.send({"id": 1, "method": method, "params": params})
        assert _received(peer) == [f"f {method} a {2 if method == 'remove' else params['value']}", "result 1"]


def test_nothing_after_unfetch(bus: Bus) -> None:
    """After the response to unfetch there are no more events of that fetch, while others go on."""
    owner, fetcher = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "a", "value": 1})
    fetcher.fetch("f")
    fetcher.fetch("g")
    assert fetcher.result("unfetch", {"id": "f"}) is True
    owner.notify("change", {"path": "a", "value": 2})
    assert _received(fetcher) == ["g change a 2"]


def test_a_fetch_id_is_a_peers_own(bus: Bus) -> None:
    """A peer cannot use a fetch id twice, text and number are different ids, and other peers do not matter."""
    one, other = Peer(bus), Peer(bus)
    one.fetch(1)
    one.fetch("1")
    other.fetch(1)
    assert one.data("fetch", {"id": 1}) == {"fetchIdAlreadyExists": 1}
    assert one.data("unfetch", {"id": "f"}) == {"fetchIdNotExists": "f"}


# Values that start and stop matching.


def test_values_start_and_stop_matching(bus: Bus) -> None:
    """A value that starts matching is an add, one that stops a remove with the new value."""
    owner, fetcher = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "x", "value": 5})
    assert fetcher.fetch(value={"lessThan": 10}) == [{"path": "x", "event": "add", "value": 5}]
    for value in (6, 60, 61, 7):
        owner.notify("change", {"path": "x", "value": value})
    owner.notify("remove", {"path": "x"})
    assert _received(fetcher) == ["f change x 6", "f remove x 60", "f add x 7", "f remove x 7"]
    owner.notify("add", {"path": "x", "value": 99})
    owner.notify("remove", {"path": "x"})
    assert fetcher.received() == []


# Batches and ids.


def test_a_batch_is_handled_in_order(bus: Bus) -> None:
    """The messages of a batch are handled one by one, each answered by itself; a bad one harms no other."""
    peer = Peer(bus)
    peer.send(
        [
            {"id": 1, "method": "add", "params": {"path": "a", "value": 1}},
            5,
            {"id": 2, "method": "nonsense", "params": {}},
            [],
            {"id": 3, "method": "get", "params": {}},
        ]
    )
    assert _received(peer) == ["result 1", "error None", "error 2", "error None", "result 3"]


@pytest.mark.parametrize("text", ["1", '"x"', "1.50", "-0", '"\\u0041"', "12345678901234567890", '""'])
def test_ids_are_echoed(bus: Bus, text: str) -> None:
    """An id comes back byte by byte, with a result, an error and through an owner."""
    owner, peer = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    peer.send_text(f'{{"id":{text},"method":"echo","params":{{}}}}')
    peer.send_text(f'{{"id":{text},"method":"nonsense"}}')
    peer.send_text(f'{{"id":{text},"method":"call","params":{{"path":"m"}}}}')
    (routed,) = owner.received()
    owner.send({"id": routed["id"], "result": None})
    received = peer.told_texts()
    assert len(received) == 3
    assert all(message.startswith(f'{{"id":{text},') for message in received)


def test_notifications_are_not_answered(bus: Bus) -> None:
    """Notifications are never answered, not even if they are refused."""
    peer = Peer(bus)
    peer.notify("add", {"path": "a", "value": 1})
    peer.notify("add", {"path": "a", "value": 1})
    peer.notify("nonsense", {})
    peer.send({"id": None, "method": "add", "params": {"path": "a"}})
    assert peer.received() == []


TWICE = {
    "id": '{"id":1,"id":2,"method":"remove","params":{"path":"a"}}',
    "method": '{"id":1,"method":"set","method":"remove","params":{"path":"a"}}',
    "path of a remove": '{"id":1,"method":"remove","params":{"path":"x","path":"a"}}',
    "path of a set": '{"id":1,"method":"set","params":{"path":"x","path":"a","value":1}}',
    "value": '{"id":1,"method":"set","params":{"path":"a","value":1,"value":2}}',
    "value, no path": '{"id":1,"method":"set","params":{"value":1,"value":2}}',
    "params": '{"id":1,"method":"remove","params":{},"params":{"path":"a"}}',
    "args": '{"id":1,"method":"call","params":{"path":"a","args":[],"args":[]}}',
}


@pytest.mark.parametrize("text", TWICE.values(), ids=TWICE)
def test_a_key_given_twice(bus: Bus, text: str) -> None:
    """A request with a key twice is refused, and nothing of it is done."""
    owner, other = Peer(bus), Peer(bus)
    owner.request("add", {"path": "a", "value": 0})
    for peer in (owner, other):
        peer.send_text(text)
        (received,) = peer.received()
        assert received["error"]["code"] == -32600
    assert [entry["value"] for entry in other.request("get", {})["result"]] == [0]


# Routing.


def test_a_request_and_its_answer(bus: Bus) -> None:
    """A set goes to the owner and its answer back; a change sent before the answer arrives before it."""
    owner, peer = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "s", "value": 1})
    peer.fetch("f")
    peer.send({"id": 5, "method": "set", "params": {"path": "s", "value": 2}})
    (routed,) = owner.received()
    assert routed == {"id": routed["id"], "method": "s", "params": {"value": 2}}
    owner.send({"method": "change", "params": {"path": "s", "value": 2}}, {"id": routed["id"], "result": False})
    assert peer.received() == [
        {"method": "f", "params": {"path": "s", "event": "change", "value": 2}},
        {"id": 5, "result": False},
    ]


def test_requests_keep_their_order(bus: Bus) -> None:
    """Requests reach the owner in the order they came; it may answer in any."""
    owner, one, two = Peer(bus), Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    for peer, number in ((one, 1), (two, 1), (one, 2)):
        peer.send({"id": number, "method": "call", "params": {"path": "m", "args": [number]}})
    routed = owner.received()
    assert [message["params"] for message in routed] == [[1], [1], [2]]
    assert len({message["id"] for message in routed}) == 3
    for message in reversed(routed):
        owner.send({"id": message["id"], "result": message["id"]})
    assert one.received() == [{"id": 2, "result": routed[2]["id"]}, {"id": 1, "result": routed[0]["id"]}]
    assert two.received() == [{"id": 1, "result": routed[1]["id"]}]


def test_a_third_peer_cannot_answer(bus: Bus) -> None:
    """Only the owner can answer a request; what others send under its id is dropped."""
    owner, peer, third = Peer(bus), Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    peer.send({"id": 1, "method": "call", "params": {"path": "m"}})
    (routed,) = owner.received()
    third.send({"id": routed["id"], "result": "forged"})
    assert peer.received() == []
    owner.send({"id": routed["id"], "result": "true"})
    assert peer.received() == [{"id": 1, "result": "true"}]


ALMOST_USUAL: dict[str, tuple[str, str | None, list[Any]]] = {
    "as usual": ('{"id":ID,"result":true}', None, [{"id": 1, "result": True}]),
    "with a blank": ('{"id": ID,"result":true}', None, [{"id": 1, "result": True}]),
    "of nobody": ('{"id":"r77","result":true}', None, []),
    "an error, too": ('{"id":ID,"error":{"code":7},"result":true}', None, [{"id": 1, "error": {"code": 7}}]),
    "a result twice": ('{"id":ID,"result":false,"result":true}', "Invalid Request", []),
    "no JSON": ('{"id":r1,"result":true}', "Parse error", []),
}


@pytest.mark.parametrize(("answer", "refused", "received"), ALMOST_USUAL.values(), ids=ALMOST_USUAL)
def test_answers_that_look_usual(bus: Bus, answer: str, refused: str | None, received: list[Any]) -> None:
    """An answer that ends as most do is looked at all the same; given twice, it counts once."""
    owner, peer = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    for number in (1, 2):
        peer.send({"id": number, "method": "call", "params": {"path": "m"}})
    first, second = owner.received()
    text = answer.replace("ID", json.dumps(first["id"]))
    owner.send_text(text)
    assert [message["error"]["message"] for message in owner.received()] == ([refused] if refused else [])
    assert peer.received() == received
    if received:
        owner.send_text(text)
        assert peer.received() == []
    owner.send({"id": second["id"], "result": True})
    assert peer.received() == [{"id": 2, "result": True}]


TIMEOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "the daemon's": ({}, {}, 5.0),
    "the element's": ({"timeout": 2}, {}, 2.0),
    "the request's": ({"timeout": 2}, {"timeout": 0.5}, 0.5),
    "a longer one of the request": ({"timeout": 2}, {"timeout": 9}, 9.0),
    "null means none given": ({"timeout": None}, {"timeout": None}, 5.0),
}


@pytest.mark.parametrize(("element", "request_params", "timeout_s"), TIMEOUTS.values(), ids=TIMEOUTS)
def test_timeouts(bus: Bus, element: dict[str, Any], request_params: dict[str, Any], timeout_s: float) -> None:
    """A request waits as long as it says, else as long as the element says, else as long as the daemon does."""
    owner, peer = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m", **element})
    peer.send({"id": 1, "method": "call", "params": {"path": "m", **request_params}}, now=100.0)
    bus.routing.expire(100.0 + timeout_s - 0.02)
    assert peer.received() == []
    bus.routing.expire(100.0 + timeout_s + 0.02)
    assert peer.received() == [
        {
            "id": 1,
            "error": {"code": -32001, "message": "Response Timeout", "data": {"path": "m", **request_params}},
        }
    ]
    (routed,) = owner.received()
    owner.send({"id": routed["id"], "result": "late"})
    assert peer.received() == []


def test_timeout_as_cpp_peers_know_it(bus: Bus) -> None:
    """A request with ``jsonrpc`` times out as an internal error."""
    owner, peer = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    peer.send({"id": 1, "jsonrpc": "2.0", "method": "call", "params": {"path": "m"}})
    bus.routing.expire(100.0)
    (response,) = peer.received()
    assert response["error"]["code"] == -32603
    assert response["error"]["data"] == {"reason": "timeout for routed request"}


RESULTS: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    "true for a C++ peer": ("set", {"jsonrpc": "2.0"}, True, {}),
    "true for others": ("set", {}, True, True),
    "a warning for a C++ peer": ("set", {"jsonrpc": "2.0"}, {"warning": 1}, {"warning": 1}),
    "true of a call": ("call", {"jsonrpc": "2.0"}, True, True),
    "null": ("set", {}, None, None),
}


@pytest.mark.parametrize(("method", "extra", "answered", "received"), RESULTS.values(), ids=RESULTS)
def test_results(bus: Bus, method: str, extra: dict[str, Any], answered: Any, received: Any) -> None:
    """A result is passed on unchanged, but a C++ peer gets an object where a set was answered with true."""
    owner, peer = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "x", "value": 1} if method == "set" else {"path": "x"})
    peer.send({"id": 1, **extra, "method": method, "params": {"path": "x", "value": 2}})
    (routed,) = owner.received()
    owner.send({"id": routed["id"], "result": answered})
    assert peer.received() == [{"id": 1, "result": received}]


def test_a_requester_that_is_gone(bus: Bus) -> None:
    """An owner may answer a peer that is gone."""
    owner, peer = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    peer.send({"id": 1, "method": "call", "params": {"path": "m"}})
    peer.disconnect()
    (routed,) = owner.received()
    owner.send({"id": routed["id"], "result": 1})
    bus.routing.expire(100.0)
    assert owner.received() == []


# Lost owners.


def test_a_lost_owner(bus: Bus) -> None:
    """Requests to a lost owner fail before its elements are removed, in the order they were added."""
    owner, peer = Peer(bus), Peer(bus)
    for path in ("z", "a", "m"):
        owner.notify("add", {"path": path, "value": 1})
    peer.fetch("f")
    for number, path in enumerate(("a", "z", "a")):
        peer.send({"id": number, "method": "set", "params": {"path": path, "value": 2}})
    owner.disconnect()
    received = peer.received()
    assert [_short(message) for message in received] == [
        "error 0",
        "error 1",
        "error 2",
        "f remove z 1",
        "f remove a 1",
        "f remove m 1",
    ]
    assert received[0]["error"]["code"] == -32603
    assert received[0]["error"]["data"] == {"reason": "peer shuts down", "message": "peer shuts down"}
    assert bus.tree.elements == {}
    assert bus.routes.count == 0
    bus.routing.expire(1000.0)
    assert peer.received() == []


def test_a_lost_owner_is_told_nothing(bus: Bus) -> None:
    """A lost peer is told neither its own removes nor that its own request failed."""
    peer, other = Peer(bus), Peer(bus)
    peer.notify("add", {"path": "m"})
    peer.fetch("f")
    peer.send({"id": 1, "method": "call", "params": {"path": "m"}})
    peer.received()
    peer.disconnect()
    peer.disconnect()
    assert peer.received() == []
    assert other.result("get", {}) == []
    assert len(bus.fetches) == 0
    assert list(bus.sessions) == [other.session.number]


def test_a_lost_owner_for_a_legacy_fetch(bus: Bus) -> None:
    """Nodes go with their last leaf, after it and deepest first."""
    owner, other, fetcher = Peer(bus), Peer(bus), Peer(bus)
    owner.notify("add", {"path": "a/b/c", "value": 1})
    other.notify("add", {"path": "a/d", "value": 1})
    fetcher.send({"method": "fetch", "params": {"id": "all", "match": [".*"]}})
    fetcher.received()
    owner.disconnect()
    assert _received(fetcher) == ["all remove a/b/c None", "all remove a/b None"]
    other.disconnect()
    assert _received(fetcher) == ["all remove a/d None", "all remove a None"]


# Sessions that are held.


class Aside:
    """A worker that does nothing until it is told to."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.delays: list[tuple[float, Callable[[], None]]] = []

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.work.append((work, done))

    def later(self, delay_s: float, then: Callable[[], None]) -> None:
        self.delays.append((delay_s, then))

    def go(self) -> None:
        """Do the next piece of work."""
        work, done = self.work.pop(0)
        outcome: Any
        try:
            outcome = work()
        except JetError as error:
            outcome = error
        done(outcome)

    def wait(self) -> float:
        """Let the next delay pass; how long it was."""
        delay_s, then = self.delays.pop(0)
        then()
        return delay_s


@pytest.fixture
def users(tmp_path: Path) -> Users:
    """Ann is in the group staff, for everything."""
    groups = {"fetchGroups": ["staff"], "setGroups": ["staff"], "callGroups": ["staff"]}
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"users": {"ann": {"password": CHEAP.hash("ann-pw"), "auth": groups}}}))
    return Users.load(file, hasher=CHEAP)


LOGIN = {"user": "ann", "password": "ann-pw"}
WRONG_LOGIN = {"user": "ann", "password": "wrong"}


class Held:
    """A peer of a bus whose slow services take as long as the test wants."""

    def __init__(self, users: Users) -> None:
        self.aside = Aside()
        self.bus = Bus(users=users, worker=self.aside)
        self.peer = Peer(self.bus)
        self.peer.session.released = self._on_released

    def _on_released(self) -> None:
        """As a connection does: what has waited is taken in."""
        session = self.peer.session
        self.bus.receive(session, self.bus.serving.take_waiting(session), 0.0)


@pytest.fixture
def held(users: Users) -> Held:
    return Held(users)


def test_messages_wait_for_a_slow_service(held: Held) -> None:
    """Messages behind a slow request are handled after it, in order; other peers do not wait."""
    other = Peer(held.bus)
    held.peer.send(
        {"id": 1, "method": "echo", "params": {}},
        {"id": 2, "method": "authenticate", "params": LOGIN},
        {"id": 3, "method": "echo", "params": {}},
    )
    held.peer.send({"id": 4, "method": "echo", "params": {}})
    assert _received(held.peer) == ["result 1"]
    assert other.result("echo", {}) == {}
    held.aside.go()
    assert _received(held.peer) == ["result 2", "result 3", "result 4"]


def test_messages_wait_inside_a_batch(held: Held) -> None:
    """A slow request in a batch holds the messages behind it."""
    held.peer.send(
        [{"id": 1, "method": "authenticate", "params": LOGIN}, {"id": 2, "method": "echo", "params": {}}],
        {"id": 3, "method": "echo", "params": {}},
    )
    assert held.peer.received() == []
    held.aside.go()
    assert _received(held.peer) == ["result 1", "result 2", "result 3"]


def test_a_slow_service_behind_a_slow_service(held: Held) -> None:
    """Slow requests of one peer are handled one after the other."""
    for number in range(3):
        held.peer.send({"id": number, "method": "authenticate", "params": LOGIN})
    for number in range(3):
        assert len(held.aside.work) == 1
        held.aside.go()
        assert _received(held.peer) == [f"result {number}"]


def test_events_reach_a_held_peer(held: Held) -> None:
    """A peer whose requests wait is told events all the same."""
    owner = Peer(held.bus)
    held.peer.send({"id": 1, "method": "authenticate", "params": LOGIN})
    held.aside.go()
    held.peer.send({"id": 2, "method": "fetch", "params": {"id": "f"}})
    held.peer.send({"id": 3, "method": "passwd", "params": {"user": "ann", "password": "ann-pw"}})
    assert _received(held.peer) == ["result 1", "result 2"]
    owner.notify("add", {"path": "a", "value": 1})
    assert _received(held.peer) == ["f add a 1"]


def test_failed_logins_are_slowed_down(held: Held) -> None:
    """Each failed login of a peer takes longer to be answered, up to a limit; the peer waits meanwhile."""
    delays = []
    for number in range(8):
        held.peer.send({"id": number, "method": "authenticate", "params": WRONG_LOGIN})
        held.peer.send({"id": "next", "method": "echo", "params": {}})
        held.aside.go()
        assert held.peer.received() == []
        delays.append(held.aside.wait())
        assert _received(held.peer) == [f"error {number}", "result next"]
    assert delays == sorted(delays)
    assert delays[0] > 0
    assert delays[1] > delays[0]
    assert delays[-1] == delays[-2]
    assert held.bus.logins_failed == 8


def test_a_held_peer_goes_away(held: Held) -> None:
    """A peer may go away while its request is handled; nothing of what it had sent behind it is done."""
    held.peer.send(
        {"id": 1, "method": "authenticate", "params": LOGIN},
        {"method": "add", "params": {"path": "ghost", "value": 1}},
    )
    held.peer.disconnect()
    held.aside.go()
    assert held.peer.received() == []
    assert held.bus.tree.elements == {}


def test_authenticate_comes_before_fetch(held: Held) -> None:
    """The view of a fetch is decided when it starts, so nobody authenticates later."""
    held.peer.fetch("f")
    assert held.peer.data("authenticate", LOGIN) == {"alreadyFetching": True}
    assert held.aside.work == []


# Hidden elements.


CLOSED = {"fetchGroups": ["staff"], "setGroups": ["staff"], "callGroups": ["staff"]}


@pytest.fixture
def hiding(bus: Bus) -> tuple[Peer, Peer, Peer]:
    """An owner of hidden and half-open elements, a stranger, and one of the group that may do everything."""
    owner, stranger, friend = Peer(bus), Peer(bus), Peer(bus)
    staff = ["staff"]
    friend.session.auth = Auth("ann", ("staff",), ("staff",), ("staff",))
    owner.notify("add", {"path": "h/state", "value": 1, "access": CLOSED})
    owner.notify("add", {"path": "h/method", "access": CLOSED})
    owner.notify("add", {"path": "h/locked", "value": 1, "fetchOnly": True, "access": CLOSED})
    owner.notify("add", {"path": "seen", "value": 1, "access": {"setGroups": staff}})
    owner.notify("add", {"path": "blind", "value": 1, "access": {"fetchGroups": staff}})
    return owner, stranger, friend


HIDDEN = ["h/state", "h/method", "h/locked"]


@pytest.mark.parametrize("path", HIDDEN)
@pytest.mark.parametrize("method", ["set", "call", "change", "remove"])
def test_hidden_is_as_if_absent(hiding: tuple[Peer, Peer, Peer], method: str, path: str) -> None:
    """Whatever a stranger tries, a hidden element answers exactly as a path that nobody has added."""
    _, stranger, _ = hiding
    absent = stranger.error(method, {"path": "nothing", "value": 2})
    hidden = stranger.error(method, {"path": path, "value": 2})
    assert json.loads(json.dumps(hidden).replace(path, "nothing")) == absent
    assert hidden["data"] == {"pathNotExists": path}


GETS: dict[str, dict[str, Any]] = {
    "everything": {},
    "prefix": {"path": {"startsWith": "h/"}},
    "exact": {"path": {"equals": "h/state"}},
    "by value": {"value": {"equals": 1}},
    "sorted": {"sort": {}},
    "sorted by value": {"sort": {"byValue": "number"}},
}


@pytest.mark.parametrize("params", GETS.values(), ids=GETS)
def test_hidden_from_get_and_fetch(hiding: tuple[Peer, Peer, Peer], params: dict[str, Any]) -> None:
    """A stranger finds nothing hidden by any rule, and positions of a sorted list do not tell of it."""
    owner, stranger, friend = hiding
    assert "h/" not in json.dumps(stranger.result("get", params))
    assert "h/state" in json.dumps(friend.result("get", params))
    assert "h/" not in json.dumps(stranger.fetch("f", **params))
    assert "h/state" in json.dumps(friend.fetch("f", **params))
    owner.notify("change", {"path": "h/state", "value": 1})
    owner.notify("remove", {"path": "h/state"})
    owner.notify("add", {"path": "h/state", "value": 1, "access": CLOSED})
    assert stranger.received() == []
    assert len(friend.received()) == 3


def test_hidden_from_legacy_fetches(hiding: tuple[Peer, Peer, Peer]) -> None:
    """A node above nothing but hidden leaves is hidden too."""
    owner, stranger, friend = hiding
    for peer in (stranger, friend):
        peer.send({"method": "fetch", "params": {"id": "all", "matcher": "^h"}})
    assert stranger.received() == []
    assert _received(friend)[0] == "all add h None"
    owner.notify("add", {"path": "h/open", "value": 1})
    assert _received(stranger) == ["all add h None", "all add h/open None"]
    owner.notify("remove", {"path": "h/open"})
    assert _received(stranger) == ["all remove h/open None", "all remove h None"]
    assert _received(friend) == ["all add h/open None", "all remove h/open None"]


def test_seen_but_not_settable(hiding: tuple[Peer, Peer, Peer]) -> None:
    """An element that a user may see but not set is announced as read-only, and a set is refused."""
    _, stranger, friend = hiding
    assert stranger.data("set", {"path": "seen", "value": 2}) == {"noAccess": "seen"}
    assert stranger.fetch(path={"equals": "seen"}) == [
        {"path": "seen", "event": "add", "value": 1, "fetchOnly": True},
    ]
    assert friend.fetch(path={"equals": "seen"}) == [{"path": "seen", "event": "add", "value": 1}]


def test_hidden_from_fetch_is_hidden_from_set(hiding: tuple[Peer, Peer, Peer]) -> None:
    """A state with fetchGroups alone does not exist for a stranger's set, and whoever may fetch it may set it."""
    owner, stranger, friend = hiding
    assert stranger.data("set", {"path": "blind", "value": 2}) == {"pathNotExists": "blind"}
    stranger.notify("set", {"path": "blind", "value": 2})
    assert owner.received() == []
    friend.notify("set", {"path": "blind", "value": 3})
    assert [message["params"] for message in owner.received()] == [{"value": 3}]


def test_friends_get_the_real_errors(hiding: tuple[Peer, Peer, Peer]) -> None:
    """Whoever may see an element is told what is really wrong."""
    _, _, friend = hiding
    assert friend.data("set", {"path": "h/locked", "value": 2}) == {"fetchOnly": "h/locked"}
    assert friend.data("set", {"path": "h/method", "value": 2}) == {"pathIsNotState": "h/method"}
    assert friend.data("call", {"path": "h/state"}) == {"pathIsNotMethod": "h/state"}
    assert friend.data("remove", {"path": "h/state"}) == {"foreignPath": "h/state"}


def test_an_owner_sees_to_its_own(hiding: tuple[Peer, Peer, Peer]) -> None:
    """An owner changes and removes what is hidden from its own user."""
    owner, _, friend = hiding
    friend.fetch("f", path={"startsWith": "h/"})
    assert owner.result("change", {"path": "h/state", "value": 2}) is True
    assert owner.result("remove", {"path": "h/state"}) is True
    assert _received(friend) == ["f change h/state 2", "f remove h/state 2"]


# Limits that change while running.


def test_limits_can_change(bus: Bus) -> None:
    """New limits count from the next message on, lower or higher."""
    peer = Peer(bus)
    deep = '{"id":1,"method":"echo","params":{"x":' + "[" * 20 + "]" * 20 + "}}"
    for depth_max, answered in ((10, "error None"), (128, "result 1"), (21, "error None"), (22, "result 1")):
        bus.configure(Limits(depth_max=depth_max, elements_max=1), 5.0)
        peer.send_text(deep)
        assert _received(peer) == [answered], depth_max
    peer.notify("add", {"path": "a", "value": 1})
    assert peer.error("add", {"path": "b", "value": 1})["code"] == -32603
    assert bus.limit_hits == {"depth_max": 2, "elements_max": 1}


@pytest.mark.parametrize("text", [b"[" * 2000 + b"]" * 2000, b"[" + b"[]," * 20_000 + b"[]]", b"{", b'{"id":"\xff"}'])
def test_refused_texts_are_freed_at_once(bus: Bus, text: bytes) -> None:
    """A text that is refused is not kept by the error: cycles are collected late, and texts may be long."""
    peer = Peer(bus)
    references = sys.getrefcount(text)
    gc.disable()
    try:
        bus.receive(peer.session, [text], 0.0)
        assert sys.getrefcount(text) == references
    finally:
        gc.enable()


# What the daemon owns.


def test_own_states(bus: Bus) -> None:
    """The daemon's own states are told to those who ask for them, once per new value, and nobody can touch them."""
    peer = Peer(bus)
    bus.builtin.publish("$jet/x", b"1")
    assert peer.result("get", {}) == []
    assert peer.fetch(path={"startsWith": "$jet/"}) == [
        {"path": "$jet/x", "event": "add", "value": 1, "fetchOnly": True},
    ]
    for value in (b"1", b"2", b"2"):
        bus.builtin.publish("$jet/x", value)
    bus.builtin.remove("$jet/x")
    bus.builtin.remove("$jet/x")
    assert _received(peer) == ["f change $jet/x 2", "f remove $jet/x 2"]
    bus.builtin.publish("$jet/x", b"3")
    assert _received(peer) == ["f add $jet/x 3"]
    assert peer.data("set", {"path": "$jet/x", "value": 1}) == {"fetchOnly": "$jet/x"}
    assert peer.data("change", {"path": "$jet/x", "value": 1}) == {"foreignPath": "$jet/x"}
    assert peer.data("add", {"path": "$jet/y", "value": 1}) == {"pathAlreadyExists": "$jet/y"}


def test_a_fetch_begins_while_its_equal_ends() -> None:
    """A fetch that is prepared while the last equal one of another peer ends sees each change once, then and later."""
    bus = Bus()
    owner, leaving, joining = Peer(bus), Peer(bus), Peer(bus)
    owner.notify("add", {"path": "a", "value": 0})
    leaving.notify("fetch", {"id": "f"})
    leaving.received()
    fetch = PendingFetch(bus.fetches, joining.session, b'"f"', EVERYTHING, FetchOptions(), b"", events_first=False)
    steps = bus.preparations.serve(joining.session, fetch.make_wish)
    remaining = bus.fetches.leave(leaving.session, b'"f"')
    assert list(steps) == []
    assert [event["value"] for event in joining.events()] == [0]
    owner.notify("change", {"path": "a", "value": 1})
    assert [event["value"] for event in joining.events()] == [1]
    for _ in remaining:
        pass
    owner.notify("change", {"path": "a", "value": 2})
    assert [event["value"] for event in joining.events()] == [2]
    assert leaving.received() == []


def test_a_search_ends_with_its_peer() -> None:
    """The room of a long get is free as soon as its peer is gone, without the garbage collector."""
    bus = Bus(limits=Limits(search_bytes_max=1))
    owner, gone, waiting = Peer(bus), Peer(bus), Peer(bus)
    owner.send(*({"method": "add", "params": {"path": f"t/{number}", "value": 0}} for number in range(2000)))
    bus.serving.turn_ends = -1.0
    gc.disable()
    try:
        gone.send({"id": 1, "method": "get", "params": {}})
        waiting.send({"id": 1, "method": "get", "params": {"path": {"contains": "t"}}})
        assert (gone.session.condition, waiting.session.condition) == (Condition.DUE, Condition.AWAITING)
        bus.disconnect(gone.session)
        assert waiting.session.condition is Condition.DUE
    finally:
        gc.enable()
    bus.serving.turn_ends = math.inf
    bus.serving.next_turn(waiting.session)
    assert len(waiting.received()[0]["result"]) == 2000


def test_searches_of_one_preparation_end_with_their_peers() -> None:
    """A search whose end gives room to an equal one of a peer that is gone ends itself, and so does the other."""
    bus = Bus(limits=Limits(search_bytes_max=1))
    owner, first, gone = Peer(bus), Peer(bus), Peer(bus)
    owner.send(*({"method": "add", "params": {"path": f"t/{number}", "value": 0}} for number in range(2000)))
    bus.serving.turn_ends = -1.0
    first.send({"id": 1, "method": "get", "params": {}})
    gone.send({"id": 1, "method": "get", "params": {"meta": True}})
    assert (len(bus.preparations), gone.session.condition) == (1, Condition.AWAITING)
    bus.disconnect(gone.session)
    bus.serving.turn_ends = math.inf
    bus.serving.next_turn(first.session)
    assert len(first.received()[0]["result"]) == 2000
    assert len(bus.preparations) == 0
