"""The session and its fetches without any connection: messages in, messages out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

import jetbus
from jetbus.json_types import DaemonInfo
from jetbus.peer.compat import features_of
from jetbus.peer.elements import OwnedMethod, OwnedState
from jetbus.peer.events import Event
from jetbus.peer.peer_session import PeerSession
from jetbus.peer.requests import CallParams, SetParams, SetReader
from jetbus.peer.subscription import Policy, Subscription
from jetbus.peer.values import may_have_blobs, plain, plain_args
from jetbus.rules import rule

OURS: DaemonInfo = {"name": "jetbus"}
NODE_JET: DaemonInfo = {"name": "node-jet", "features": {"authentication": True}}
NODE_JET_3: DaemonInfo = {"name": "node-jet", "features": {"asNotification": False}}
CJET: DaemonInfo = {"name": "cjet"}
DAEMONS: dict[str, DaemonInfo] = {
    "ours": OURS,
    "node-jet": NODE_JET,
    "node-jet 3": NODE_JET_3,
    "cjet": CJET,
    "unknown": {},
}


class Waiter:
    """Takes a response."""

    def __init__(self) -> None:
        self.outcome: Any = None
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any, /) -> None:
        self.outcome, self.is_done = result, True

    def set_exception(self, exception: BaseException, /) -> None:
        self.outcome, self.is_done = exception, True


def _spawn(_work: Awaitable[Any], _done: Callable[[Any, BaseException | None], None]) -> None:
    raise AssertionError("nothing here is asynchronous")


IN_BATCHES = {"method": "config", "params": {"became": True, "batches": True}}


def _is_opening(message: Any) -> bool:
    return isinstance(message, dict) and {**message, "id": 0} == {**IN_BATCHES, "id": 0}


class Wire:
    """A session and the daemon's side of its connection."""

    def __init__(self, daemon: DaemonInfo | None = None) -> None:
        self.session = PeerSession(spawn=_spawn)
        self.session.daemon = OURS if daemon is None else daemon
        self.session.on_connected()

    def sent(self) -> list[Any]:
        """Return the messages sent since the last call, without those that begin every connection to our daemon."""
        return [message for message in map(json.loads, self.session.take_out()) if not _is_opening(message)]

    def hear(self, *messages: Any) -> None:
        self.session.receive([json.dumps(message).encode() for message in messages])

    def fetch(self, fetching: Subscription) -> None:
        self.session.fetch(fetching)

    def answer_all(self) -> None:
        """Answer every open request in the order they were sent."""
        self.hear(*({"id": message["id"], "result": True} for message in self.sent() if "id" in message))


def _owned(path: str, value: Any = None, on_set: Callable[[Any], Any] | None = None) -> OwnedState:
    return OwnedState(path, value, on_set, None, None, None)


def test_batches_are_asked_for() -> None:
    """Our daemon is told first of all that it may send batches; others never are, some peers crash on them."""
    assert [json.loads(message) for message in Wire().session.out] == [IN_BATCHES]
    assert Wire({"name": "node-jet"}).session.out == []


def test_a_batch() -> None:
    """Answers, events and requests in a batch are what they would be alone, in their order."""
    wire = Wire()
    waiter = Waiter()
    wire.session.request("info", {}, waiter)
    wire.session.add(_owned("s", 1, lambda _value: None), Waiter())
    fetching = Subscription("f1", rule(), policy="every")
    wire.fetch(fetching)
    asked, *_ = wire.sent()
    batch = [
        _make_change("f1", "add", "a", 0),
        {"id": asked["id"], "result": {"mime": "text/plain", "base64": "aGk="}},
        {"id": "r1", "method": "s", "params": {"value": 2}},
        {"method": "f1", "params": {"path": "m", "event": "add"}},
        {"method": "f1", "params": ["a", {"mime": "text/plain", "base64": "aGk="}, False]},
    ]
    wire.session.receive([json.dumps(batch).encode(), json.dumps([_make_change("f1", "change", "a", 3)]).encode()])
    assert waiter.outcome == b"hi"
    assert [(event.kind, event.path, event.value) for event in fetching.take()] == [
        ("add", "a", 0),
        ("add", "m", None),
        ("change", "a", b"hi"),
        ("change", "a", 3),
    ]
    changed, answered = wire.sent()
    assert changed["params"] == {"path": "s", "value": 2}
    assert answered["id"] == "r1"


def test_odd_members_of_a_batch() -> None:
    """A member that is no message harms no other."""
    wire = Wire()
    waiter = Waiter()
    wire.session.request("info", {}, waiter)
    (asked,) = wire.sent()
    wire.session.receive([b'[1,{"method":7},{"id":%d,"result":5},{"method":"x","params":"y"}]' % asked["id"]])
    assert waiter.outcome == 5


def test_responses_find_their_requests() -> None:
    """Responses are matched by id, in any order; unknown ones are ignored."""
    wire = Wire()
    waiters = [Waiter() for _ in range(3)]
    for waiter in waiters:
        wire.session.request("info", {}, waiter)
    ids = [message["id"] for message in wire.sent()]
    assert len(set(ids)) == 3
    wire.hear({"id": ids[2], "result": 2}, {"id": 99, "result": 9}, {"id": ids[0], "result": 0})
    wire.hear({"id": ids[1], "error": {"code": -32602, "message": "Invalid params", "data": {"pathNotExists": "a"}}})
    assert [waiters[0].outcome, waiters[2].outcome] == [0, 2]
    assert isinstance(waiters[1].outcome, jetbus.NotFound)
    assert wire.session.open_request_count == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b"17",
        b'"x"',
        b"{}",
        b'{"method":5}',
        b"\xff",
        b'{"id":1}',
        b'{"method":"f1","params":{"path":5}}',
        b'{"method":"f1","params":["a",1]}',
        b'{"method":"f1","params":[[],1,false]}',
    ],
    ids=repr,
)
@pytest.mark.parametrize("synced", [False, True])
def test_nonsense_is_survived(text: bytes, synced: bool) -> None:
    """Invalid messages do no harm, and those after them are handled."""
    wire = Wire()
    wire.fetch(Subscription("f1", rule()))
    if synced:
        wire.answer_all()
    waiter = Waiter()
    wire.session.request("info", {}, waiter)
    number = wire.sent()[-1]["id"]
    wire.session.receive([text, b'{"id":%d,"result":true}' % number])
    assert waiter.outcome is True


def test_batch_from_the_daemon() -> None:
    """A daemon may answer in batches."""
    wire = Wire()
    waiters = [Waiter(), Waiter()]
    for waiter in waiters:
        wire.session.request("info", {}, waiter)
    wire.hear([{"id": message["id"], "result": message["id"]} for message in wire.sent()])
    assert all(waiter.is_done for waiter in waiters)


ROUTED: dict[str, tuple[Any, Any]] = {
    "classic set": (
        {"id": "r1", "method": "speed", "params": {"value": 5}},
        {"id": "r1", "result": {}},
    ),
    "set as node-jet 3 routes it": (
        {"id": "1", "method": "set", "params": {"path": "speed", "value": 5}},
        {"id": "1", "result": {}},
    ),
    "set with the value as result": (
        {"id": 1, "method": "speed", "params": {"value": 5, "valueAsResult": True}},
        {"id": 1, "result": 5},
    ),
    "positional call": ({"id": 2, "method": "add", "params": [2, 3]}, {"id": 2, "result": 5}),
    "call by keywords": ({"id": 2, "method": "add", "params": {"a": 2, "b": 3}}, {"id": 2, "result": 5}),
    "call as node-jet 3 routes it": (
        {"id": "2", "method": "call", "params": {"path": "add", "args": [2, 3]}},
        {"id": "2", "result": 5},
    ),
}


@pytest.mark.parametrize("args", [[5], [], [1, 2]], ids=repr)
def test_the_call_of_a_state_is_refused(args: list[Any]) -> None:
    """A call that the daemon routes to a state, as lua-jet and node-jet 1 do, does not set it."""
    wire = Wire()
    state = _owned("speed", 1, lambda _value: None)
    wire.session.add(state, Waiter())
    wire.answer_all()
    wire.hear({"id": 1, "method": "speed", "params": args})
    [answer] = wire.sent()
    assert answer["error"]["data"] == {"pathIsNotMethod": "speed"}
    assert state.value == 1


@pytest.mark.parametrize(("asked", "answer"), ROUTED.values(), ids=ROUTED)
def test_routed_requests(asked: Any, answer: Any) -> None:
    """A routed request is answered in whichever form the daemon routes it, after the change it made."""
    wire = Wire()
    wire.session.add(_owned("speed", 1, lambda _value: None), Waiter())
    wire.session.add(OwnedMethod("add", lambda a, b: a + b, None, None), Waiter())
    wire.sent()
    wire.hear(asked)
    *changes, last = wire.sent()
    assert last == answer
    is_set = "add" not in json.dumps(asked)
    assert changes == ([{"method": "change", "params": {"path": "speed", "value": 5}}] if is_set else [])


def test_path_named_as_a_fetch() -> None:
    """A request for a state whose path looks like a fetch id reaches the state."""
    wire = Wire()
    fetching = Subscription(wire.session.next_fetch_id(), rule())
    wire.fetch(fetching)
    wire.session.add(_owned(fetching.id, 1, lambda _value: None), Waiter())
    wire.sent()
    wire.hear({"id": "r1", "method": fetching.id, "params": {"value": 5}})
    assert wire.sent()[-1] == {"id": "r1", "result": {}}
    assert fetching.take() == []


def test_set_without_id_is_not_answered() -> None:
    """A notification changes the state and is not answered."""
    wire = Wire()
    state = _owned("speed", 1, lambda _value: None)
    wire.session.add(state, Waiter())
    wire.sent()
    wire.hear({"method": "speed", "params": {"value": 5}})
    assert wire.sent() == [{"method": "change", "params": {"path": "speed", "value": 5}}]
    assert state.value == 5


def test_connections_come_and_go() -> None:
    """On a loss all requests fail; on a return everything owned and fetched is said again with its newest value."""
    wire = Wire()
    state = _owned("speed", 1)
    wire.session.add(state, Waiter())
    wire.session.add(OwnedMethod("add", lambda: None, None, None), Waiter())
    wire.fetch(Subscription("f1", rule("a/**"), policy="every"))
    wire.answer_all()
    waiter = Waiter()
    wire.session.request("info", {}, waiter)
    wire.sent()
    wire.session.on_lost()
    assert isinstance(waiter.outcome, jetbus.ConnectionLost)
    wire.session.change(state, 2)
    with pytest.raises(jetbus.NotConnected, match=r"connect\(\)"):
        wire.session.request("info", {}, Waiter())
    assert wire.sent() == []
    wire.session.on_connected()
    assert [(message["method"], message["params"]) for message in wire.sent()] == [
        ("add", {"path": "speed", "value": 2, "fetchOnly": True}),
        ("add", {"path": "add"}),
        ("fetch", {"id": "f1", "path": {"startsWith": "a/"}, "every": True, "together": True}),
        ("info", {}),
        ("info", {}),
    ]


def test_unanswered_add_is_forgotten() -> None:
    """An add that was lost with the connection is not repeated."""
    wire = Wire()
    waiter = Waiter()
    state = _owned("speed", 1)
    wire.session.add(state, waiter)
    wire.session.on_lost()
    assert isinstance(waiter.outcome, jetbus.ConnectionLost)
    assert not state.added
    wire.session.on_connected()
    assert wire.sent() == []


def test_refused_add_is_forgotten() -> None:
    """A refused add is not repeated after a reconnect."""
    wire = Wire()
    waiter = Waiter()
    wire.session.add(_owned("speed", 1), waiter)
    wire.hear({"id": wire.sent()[0]["id"], "error": {"code": -32602, "data": {"pathAlreadyExists": "speed"}}})
    assert isinstance(waiter.outcome, jetbus.Occupied)
    wire.session.on_lost()
    wire.session.on_connected()
    assert wire.sent() == []


def test_clash_after_a_reconnect_is_reported() -> None:
    """An element that cannot be added again after a reconnect is reported to the face."""
    clashes: list[Any] = []
    wire = Wire()
    wire.session.on_clash = lambda owned, error: clashes.append((owned.path, type(error)))
    wire.session.add(_owned("speed", 1), Waiter())
    wire.answer_all()
    wire.session.on_lost()
    wire.session.on_connected()
    wire.hear({"id": wire.sent()[0]["id"], "error": {"code": -32602, "data": {"pathAlreadyExists": "speed"}}})
    assert clashes == [("speed", jetbus.Occupied)]


PATIENCE: dict[str, tuple[DaemonInfo, float | None, float]] = {
    "ours, its own time": (OURS, None, float("inf")),
    "ours, a given time": (OURS, 1.0, 3.0),
    "another, its own time": (CJET, None, 7.0),
    "another, a given time": (CJET, 1.0, 3.0),
    "one that never ends requests, its own time": (NODE_JET_3, None, 5.0),
    "one that never ends requests, a given time": (NODE_JET_3, 1.0, 1.0),
}


@pytest.mark.parametrize(("daemon", "timeout_s", "patience_s"), PATIENCE.values(), ids=PATIENCE)
def test_patience(daemon: DaemonInfo, timeout_s: float | None, patience_s: float) -> None:
    """A peer waits a little longer than the daemon; where the daemon knows the owner's own limit, as long as it."""
    assert Wire(daemon).session.get_timeout_s(timeout_s) == patience_s


def test_expiry() -> None:
    """A request that nobody answers is given up at its time."""
    wire = Wire()
    wire.session.expire(100.0)
    waiter = Waiter()
    wire.session.request("set", {}, waiter, None, 5.0, "speed")
    wire.session.expire(104.9)
    assert not waiter.is_done
    wire.session.expire(105.1)
    assert isinstance(waiter.outcome, jetbus.TimedOut)
    assert waiter.outcome.path == "speed"


SET_RESULTS: dict[str, tuple[Any, jetbus.SetResult]] = {
    "ours and C++": ({}, jetbus.SetResult(3)),
    "adapted": ({"warning": {"code": 1, "message": "m"}}, jetbus.SetResult(None, 1, "m")),
    "node-jet and Lua": (True, jetbus.SetResult(3)),
    "nothing": (None, jetbus.SetResult(3)),
    "node-jet 3": ({"path": "a", "value": 5}, jetbus.SetResult(3)),
    "something of its own": ({"path": "a", "more": 5}, jetbus.SetResult({"path": "a", "more": 5})),
}


@pytest.mark.parametrize(("received", "read"), SET_RESULTS.values(), ids=SET_RESULTS)
def test_set_results(received: Any, read: jetbus.SetResult) -> None:
    """The answer to a set is read whichever library the owner uses."""
    assert SetReader(3)(received) == read


WORDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ours is asked everything": (
        "ours",
        {"starts_not_with": "a", "value": jetbus.has_one_of(1)},
        {"path": {"startsNotWith": "a"}, "value": {"hasOneOf": [1]}},
    ),
    "node-jet has no words for lists": (
        "node-jet",
        {"starts_not_with": "a", "value": jetbus.has_one_of(1)},
        {"path": {"startsNotWith": "a"}},
    ),
    "node-jet sorts": (
        "node-jet",
        {"sort_by": "path", "last": 3},
        {"path": {"startsWith": ""}, "sort": {"byPath": True, "descending": False, "from": 1, "to": 3}},
    ),
    "node-jet 3 denies wrongly": (
        "node-jet 3",
        {"starts_with": "a", "ends_not_with": "b", "value": 5},
        {"path": {"startsWith": "a"}},
    ),
    "node-jet 3 folds wrongly": (
        "node-jet 3",
        {"starts_with": "A", "case_insensitive": True},
        {"path": {"startsWith": ""}},
    ),
    "node-jet 3 does not sort": ("node-jet 3", {"sort_by": "value"}, {"path": {"startsWith": ""}}),
    "cjet knows few": ("cjet", {"contains_one_of": ["a"], "equals": "b"}, {"path": {"equals": "b"}}),
    "unknown is asked as cjet": (
        "unknown",
        {"starts_with": "A", "case_insensitive": True, "value": 5},
        {"path": {"startsWith": "a", "caseInsensitive": True}},
    ),
}


@pytest.mark.parametrize(("daemon", "keywords", "asked"), WORDS.values(), ids=WORDS)
def test_words_of_daemons(daemon: str, keywords: dict[str, Any], asked: dict[str, Any]) -> None:
    """A daemon is asked in the words it understands, and only ours is believed without a test."""
    params, trusted = features_of(DAEMONS[daemon]).translate(rule(**keywords))
    assert params == asked
    assert trusted is (daemon == "ours")


# Runs: what arrives together is told together, which must make no difference.

BLOB = {"mime": "text/plain", "base64": "aGk="}
NO_BLOB = {"mime": "text/plain", "base64": "!"}
RUNS: dict[str, tuple[list[tuple[str, str, str, Any]], dict[str, list[tuple[str, str, Any]]]]] = {
    "changes": (
        [("f1", "change", "a", 1), ("f1", "change", "b", 2), ("f1", "change", "c", 3)],
        {"f1": [("change", "a", 1), ("change", "b", 2), ("change", "c", 3)]},
    ),
    "a path twice": (
        [("f1", "change", "a", 1), ("f1", "change", "b", 2), ("f1", "change", "a", 3)],
        {"f1": [("change", "a", 1), ("change", "b", 2), ("change", "a", 3)]},
    ),
    "a remove": (
        [("f1", "change", "a", 1), ("f1", "remove", "a", 1), ("f1", "add", "b", 2), ("f1", "add", "a", 3)],
        {"f1": [("change", "a", 1), ("remove", "a", 1), ("add", "b", 2), ("add", "a", 3)]},
    ),
    "null": (
        [("f1", "change", "a", 1), ("f1", "change", "b", None), ("f1", "change", "c", 3), ("f1", "change", "d", 4)],
        {"f1": [("change", "a", 1), ("change", "b", None), ("change", "c", 3), ("change", "d", 4)]},
    ),
    "objects": (
        [("f1", "change", "a", {"mime": 1}), ("f1", "change", "b", {}), ("f1", "change", "c", 3)],
        {"f1": [("change", "a", {"mime": 1}), ("change", "b", {}), ("change", "c", 3)]},
    ),
    "bytes": (
        [("f1", "change", "a", 1), ("f1", "change", "b", BLOB), ("f1", "change", "c", {"x": BLOB})],
        {"f1": [("change", "a", 1), ("change", "b", b"hi"), ("change", "c", {"x": BLOB})]},
    ),
    "what looks like bytes": (
        [("f1", "change", "a", 1), ("f1", "change", "b", NO_BLOB), ("f1", "change", "c", 3)],
        {"f1": [("change", "a", 1), ("change", "b", NO_BLOB), ("change", "c", 3)]},
    ),
    "two fetches in turn": (
        [("f1", "change", "a", 1), ("f2", "change", "a", 1), ("f1", "change", "b", 2), ("f2", "change", "b", 2)],
        {"f1": [("change", "a", 1), ("change", "b", 2)], "f2": [("change", "a", 1), ("change", "b", 2)]},
    ),
    "another's in between": (
        [("f1", "change", "a", 1), ("f1", "change", "b", 2), ("f9", "change", "a", 9), ("f1", "change", "c", 3)],
        {"f1": [("change", "a", 1), ("change", "b", 2), ("change", "c", 3)]},
    ),
}
TOLD_BEFORE = ["a", "b", "c", "d"]
FORMS = ["every", "latest", "callback"]


def _make_change(fetch_id: str, kind: str, path: str, value: Any) -> dict[str, Any]:
    return {"method": fetch_id, "params": {"path": path, "event": kind, "value": value, "fetchOnly": True}}


def _one_by_one(messages: list[Any]) -> list[list[Any]]:
    return [[message] for message in messages]


def _together(messages: list[Any]) -> list[list[Any]]:
    return [messages]


def _changes_together(messages: list[Any]) -> list[list[Any]]:
    """As our daemon tells changes that follow each other."""
    received: list[Any] = []
    for message in messages:
        params = message.get("params", {})
        if params.get("event") != "change":
            received.append(message)
            continue
        change = [params["path"], params["value"], params["fetchOnly"]]
        if received and received[-1].get("method") == message["method"] and isinstance(received[-1]["params"], list):
            received[-1]["params"] += change
        else:
            received.append({"method": message["method"], "params": change})
    return [received]


WAYS = {"together": _together, "one by one": _one_by_one, "changes in one message": _changes_together}


@pytest.mark.parametrize("arrive", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("heard", "received"), RUNS.values(), ids=RUNS)
def test_runs(
    heard: list[tuple[str, str, str, Any]],
    received: dict[str, list[tuple[str, str, Any]]],
    form: str,
    arrive: Callable[[list[Any]], list[list[Any]]],
) -> None:
    """However events arrive, each is told, in order, and the newest value of a path is known."""
    wire = Wire()
    seen: dict[str, list[Event]] = {"f1": [], "f2": []}
    fetches = {}
    for name, events in seen.items():
        callback = events.append if form == "callback" else None
        policy: Policy = "latest" if form == "latest" else "every"
        fetches[name] = fetching = Subscription(name, rule(), policy=policy, callback=callback)
        wire.fetch(fetching)
    wire.hear(*(_make_change(name, "add", path, 0) for name in seen for path in TOLD_BEFORE))
    wire.answer_all()
    for name, fetching in fetches.items():
        fetching.take()
        seen[name].clear()
    answered = Waiter()
    wire.session.request("info", {}, answered)
    answer = {"id": wire.sent()[-1]["id"], "result": True}
    for some in arrive([*(_make_change(*event) for event in heard), answer]):
        wire.hear(*some)
    assert answered.outcome is True
    for name, fetching in fetches.items():
        wanted = received.get(name, [])
        events = [*seen[name], *fetching.take()]
        assert fetching.conflated == len(wanted) - len(events)
        newest = {path: value for _, path, value in wanted}
        if form == "latest":
            assert {event.path: event.value for event in events} == newest
        else:
            assert [(event.kind, event.path, event.value) for event in events] == wanted
        assert all(event.fetch_only and not event.is_method for event in events)
        assert {path: fetching.known[path] for path in newest} == newest


TOLD_BYTES: dict[str, tuple[bytes, bool]] = {
    "none": (b'{"method":"f1","params":["a",1,false]}', False),
    "in the first message": (b'[{"method":"f1","params":["a",%b,false]},{"id":1,"result":1}]', True),
    "in the last message": (b'[{"id":1,"result":1},{"method":"f1","params":["a",1,false,"b",%b,false]}]', True),
    "beside an object": (b'[{"id":1,"result":{}},{"method":"f1","params":["a",%b,false]}]', True),
    "an object of a batch": (b'[{"method":"f1","params":["base64",1,false]},{"id":1,"result":{}}]', True),
    "a name of a batch": (b'[{"method":"f1","params":["base64",1,false]},{"id":1,"result":1}]', False),
    "an object": (b'{"method":"f1","params":["a",{"mime":"x"},false]}', False),
}
WRITTEN = {"plain": b'{"mime":"x","base64":"aGk="}', "escaped": b'{"mime":"x","\\u0062ase64":"aGk="}'}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize(("text", "received"), TOLD_BYTES.values(), ids=TOLD_BYTES)
def test_bytes_are_looked_for(text: bytes, received: bool, written: bytes) -> None:
    """Bytes in what was heard are never overlooked, and rarely suspected where there are none."""
    text = text.replace(b"%b", written)
    assert may_have_blobs(text, text.count(b"},{") + 1) is received


def test_changes_together_before_all_is_told() -> None:
    """Changes of a fetch that has not yet been told everything are checked one by one: what is new is an add."""
    wire = Wire()
    fetching = Subscription("f1", rule(), policy="every")
    wire.fetch(fetching)
    wire.hear(_make_change("f1", "add", "a", 0))
    wire.hear({"method": "f1", "params": ["a", 1, True, "b", 2, False]})
    wire.answer_all()
    events = [(event.kind, event.path, event.value, event.fetch_only) for event in fetching.take()]
    assert events == [("add", "a", 0, True), ("change", "a", 1, True), ("add", "b", 2, False)]


def test_changes_together_are_read_as_a_type() -> None:
    """Each of the changes that came together is read as the type that was asked for."""
    wire = Wire()
    fetching = Subscription("f1", rule(), policy="every", value_type=int)
    wire.fetch(fetching)
    wire.hear(_make_change("f1", "add", "a", 0))
    wire.answer_all()
    wire.hear({"method": "f1", "params": ["a", 1, True, "a", "x", True, "a", 2, True]})
    _, one, problem, two = fetching.take()
    assert [one.value, two.value] == [1, 2]
    assert isinstance(problem.problem, jetbus.InvalidValue)


def test_events_without_a_description_pass_as_they_are() -> None:
    """A fetch that asks for descriptions copies only the events of states that have one."""
    wire = Wire()
    fetching = Subscription("f1", rule(), policy="every", schema=True, meta=True)
    wire.fetch(fetching)
    wire.hear({"method": "f1", "params": {"event": "add", "path": "a", "value": 0}})
    wire.hear({"method": "f1", "params": {"event": "add", "path": "b", "value": 0, "schema": {"unit": "rpm"}}})
    wire.answer_all()
    fetching.take()
    plain, described = Event("change", "a", 1), Event("change", "b", 1)
    fetching.receive_events([plain, described])
    first, second = fetching.take()
    assert (first, second) == (plain, Event("change", "b", 1, told_schema={"unit": "rpm"}))
    assert first is plain
    bad, good = Event("change", "a", 2, told_quality="bad"), Event("change", "a", 3)
    fetching.receive_events([bad])
    fetching.receive_events([good, Event("remove", "b", 1), Event("add", "b", 2)])
    assert [(event.told_quality, event.told_schema) for event in fetching.take()] == [
        ("bad", UNSET),
        (None, UNSET),
        (None, {"unit": "rpm"}),
        (None, UNSET),
    ]


def test_who_waits_sees_all_that_comes_next() -> None:
    """A consumer that waits for more has seen what comes before it takes it, up to its limit."""
    wire = Wire()
    fetching = Subscription("f1", rule(), queue_max=3)
    wire.fetch(fetching)
    wire.answer_all()
    assert fetching.take(awaiting=True) == []
    for first in (1, 3, 5, 7):
        wire.hear({"method": "f1", "params": ["a", first, False, "a", first + 1, False]})
    assert [event.value for event in fetching.take(awaiting=True)] == [1, 2, 3, 4, 8]
    assert fetching.conflated == 3
    wire.hear({"method": "f1", "params": ["a", 9, False, "a", 10, False]})
    assert [event.value for event in fetching.take()] == [10]


def test_what_was_there_for_a_moment_is_told() -> None:
    """An element that was added and removed before anybody read is told as an add and a remove, each time."""
    wire = Wire()
    fetching = Subscription("f1", rule())
    wire.fetch(fetching)
    wire.answer_all()
    for value in (1, 2):
        wire.hear(_make_change("f1", "add", "a", value), _make_change("f1", "change", "a", 10 * value))
        wire.hear(_make_change("f1", "remove", "a", 10 * value))
    wire.hear(_make_change("f1", "add", "a", 3))
    events = [(event.kind, event.path, event.value) for event in fetching.take()]
    assert events == [("add", "a", 10), ("remove", "a", 10), ("add", "a", 20), ("remove", "a", 20), ("add", "a", 3)]
    assert fetching.conflated == 2
    assert fetching.known == {"a": 3}


def test_moments_have_a_limit() -> None:
    """Of elements that were there for a moment only so many are told to a consumer that does not read."""
    wire = Wire()
    fetching = Subscription("f1", rule(), queue_max=4)
    wire.fetch(fetching)
    wire.answer_all()
    for number in range(100):
        wire.hear(_make_change("f1", "add", f"n{number}", 1), _make_change("f1", "remove", f"n{number}", 1))
    assert [event.path for event in fetching.take()] == ["n0", "n0", "n1", "n1"]
    assert fetching.conflated == 196


def test_fetch_only_is_remembered() -> None:
    """Daemons say fetchOnly when an element is added; its later events are of an element that cannot be set, too."""
    wire = Wire()
    fetching = Subscription("f1", rule(), policy="every")
    wire.fetch(fetching)
    wire.answer_all()
    wire.hear({"method": "f1", "params": {"path": "a", "event": "add", "value": 1, "fetchOnly": True}})
    for received in ("change", "remove", "add", "change"):
        wire.hear({"method": "f1", "params": {"path": "a", "event": received, "value": 2}})
    assert [(event.kind, event.fetch_only) for event in fetching.take()] == [
        ("add", True),
        ("change", True),
        ("remove", True),
        ("add", False),
        ("change", False),
    ]


def test_run_ends_with_its_fetch() -> None:
    """Events of a fetch that has just ended reach nobody."""
    wire = Wire()
    fetching = Subscription("f1", rule(), policy="every", queue_max=2)
    wire.fetch(fetching)
    wire.answer_all()
    wire.hear(*(_make_change("f1", "change", "a", number) for number in range(5)))
    assert isinstance(fetching.error, jetbus.TooSlow)
    assert wire.sent() == [{"method": "unfetch", "params": {"id": "f1"}}]
    kept = len(fetching.take())
    wire.hear(*(_make_change("f1", "change", "a", number) for number in range(5)))
    assert fetching.take() == []
    assert kept == 3


def test_request_in_a_run() -> None:
    """A request for a state whose path is a fetch id is answered, also in the midst of the events of that fetch."""
    wire = Wire()
    fetching = Subscription("f1", rule(), policy="every")
    wire.fetch(fetching)
    wire.answer_all()
    wire.session.add(_owned("f1", 1, lambda _value: None), Waiter())
    wire.sent()
    wire.hear(
        _make_change("f1", "change", "a", 1),
        _make_change("f1", "change", "a", 2),
        {"id": "r1", "method": "f1", "params": {"value": 5}},
        _make_change("f1", "change", "a", 3),
    )
    assert wire.sent()[-1] == {"id": "r1", "result": {}}
    assert [event.value for event in fetching.take()] == [1, 2, 3]


PARAMS: dict[str, tuple[Any, bytes]] = {
    "set": (SetParams("a/b", 5), b'{"path":"a/b","value":5}'),
    "set in time, with its value": (
        SetParams('"\u00e4', None, 1.5, True),
        b'{"path":"\\"\xc3\xa4","value":null,"timeout":1.5,"valueAsResult":true}',
    ),
    "set to bytes": (
        SetParams("a", plain(bytearray(b"hi"))),
        b'{"path":"a","value":{"mime":"application/octet-stream","base64":"aGk="}}',
    ),
    "set to a list with bytes": (
        SetParams("a", [jetbus.Blob(b"hi", mime="text/plain")]),
        b'{"path":"a","value":[{"mime":"text/plain","base64":"aGk="}]}',
    ),
    "call": (CallParams("m", plain_args((1, "x"))), b'{"path":"m","args":[1,"x"]}'),
    "call without arguments": (CallParams("m", plain_args(()), 2), b'{"path":"m","args":[],"timeout":2}'),
    "call with bytes": (
        CallParams("m", plain_args((1, b"hi"))),
        b'{"path":"m","args":[1,{"mime":"application/octet-stream","base64":"aGk="}]}',
    ),
    "call by names, with bytes": (
        CallParams("m", plain_args({"x": memoryview(b"hi")})),
        b'{"path":"m","args":{"x":{"mime":"application/octet-stream","base64":"aGk="}}}',
    ),
    "anything that is JSON already": (Raw(b'{"a": 1}'), b'{"a": 1}'),
}


@pytest.mark.parametrize(("params", "text"), PARAMS.values(), ids=PARAMS)
def test_params(params: Any, text: bytes) -> None:
    """Requests say what they are given, and nothing that was not asked for."""
    wire = Wire(CJET)
    wire.session.request("service", params, Waiter())
    number = json.loads(wire.session.out[0])["id"]
    assert wire.session.out == [b'{"id":%d,"method":"service","params":%b}' % (number, text)]


def test_a_batch_waits_for_its_end() -> None:
    """Messages before a batch may go out while it is open; those in it go out after it, as one."""
    session = Wire(CJET).session
    asked: list[str] = []
    session.on_output = lambda: asked.append("output")
    session.send(b"1")
    session.begin_batch()
    session.send(b"2")
    assert session.take_out() == [b"1"]
    session.send(b"3")
    assert session.take_out() == []
    asked.clear()
    session.end_batch()
    assert asked == ["output"]
    session.send(b"4")
    assert session.take_out() == [b"[2,3]", b"4"]


def test_a_batch_behind_others() -> None:
    """A batch that nothing was taken out of meanwhile leaves alone what was said before it."""
    session = Wire(CJET).session
    session.send(b"1")
    session.begin_batch()
    session.send(b"2")
    session.send(b"3")
    session.end_batch()
    assert session.take_out() == [b"1", b"[2,3]"]


def test_a_lost_batch() -> None:
    """Messages of a batch for a connection that is lost are not sent on the next one."""
    session = Wire(CJET).session
    session.send(b"1")
    session.begin_batch()
    session.send(b"2")
    session.on_lost()
    session.send(b"3")
    session.send(b"4")
    session.end_batch()
    assert session.take_out() == [b"[3,4]"]


def test_no_error() -> None:
    """An error of null is none: peers of JSON-RPC 1.0 say so with every result."""
    wire, waiter = Wire(CJET), Waiter()
    wire.session.request("info", {}, waiter)
    wire.hear({"id": wire.sent()[0]["id"], "result": 5, "error": None})
    assert waiter.outcome == 5


def test_what_is_no_json_is_no_request() -> None:
    """Whoever asks for what cannot be said is told so, and nobody waits for an answer to it."""
    wire = Wire(CJET)
    with pytest.raises(TypeError, match="cannot encode a value of type complex as JSON"):
        wire.session.request("set", SetParams("a", 1j), Waiter())
    assert (wire.session.out, wire.session.open_request_count) == ([], 0)


# A fetch against a model, over any number of connections.

PATHS = st.sampled_from(["a/1", "a/2", "a/b/3", "c", "a/method"])
VALUES = st.one_of(st.integers(-3, 12), st.sampled_from([None, True, "x", [1], [True], {"k": 1}]))
STEP = st.one_of(
    st.tuples(st.just("put"), PATHS, VALUES),
    st.tuples(st.just("remove"), PATHS, st.none()),
    st.tuples(st.just("reconnect"), st.booleans(), st.none()),
    st.tuples(st.just("read"), st.none(), st.none()),
)
RULES = ("", "a/**", "a/*", "a/** value>3", "value>3")


class Model:
    """A bus with one fetch on it, as a daemon of such words tells it."""

    def __init__(self, daemon: DaemonInfo, text: str, policy: Policy) -> None:
        self.wire = Wire(daemon)
        self.daemon = daemon
        self.rule = rule(text)
        self.bus: dict[str, Any] = {}
        self.fetching = Subscription("f1", self.rule, policy=policy)
        self.picture: dict[str, Any] = {}
        self.wire.fetch(self.fetching)
        self._start()

    def _start(self) -> None:
        for path in self.bus:
            self._tell("add", path)
        self.wire.answer_all()

    def _tell(self, kind: str, path: str) -> None:
        params: dict[str, Any] = {"path": path, "event": kind}
        if path != "a/method":
            params["value"] = self.bus[path]
        if not features_of(self.daemon).is_jetbus or self._seen(path, self.bus[path]) or kind == "remove":
            self.wire.hear({"method": "f1", "params": params})

    def _seen(self, path: str, value: Any) -> bool:
        """Return True if the daemon's own rule, without a glob, matches."""
        test = self.rule.matches_value
        wider = path.startswith("a/") or not (self.rule.path or self.rule.glob)
        return wider and (test is None or (path != "a/method" and test(value)))

    def put(self, path: str, value: Any) -> None:
        value = None if path == "a/method" else value
        was = path in self.bus and self._seen(path, self.bus[path])
        existed = path in self.bus
        self.bus[path] = value
        if not features_of(self.daemon).is_jetbus:
            self._tell("change" if existed else "add", path)
        elif self._seen(path, value):
            self._tell("change" if was else "add", path)
        elif was:
            self._tell("remove", path)

    def remove(self, path: str) -> None:
        if path in self.bus:
            if not features_of(self.daemon).is_jetbus or self._seen(path, self.bus[path]):
                self._tell("remove", path)
            del self.bus[path]

    def reconnect(self, half_way: bool) -> None:
        self.wire.session.on_lost()
        self.wire.sent()
        if half_way:
            self.wire.session.on_connected()
            for path in list(self.bus)[:1]:
                self._tell("add", path)
            self.wire.session.on_lost()
            self.wire.sent()
        self.wire.session.on_connected()
        self._start()

    def read(self) -> None:
        for event in self.fetching.take():
            assert isinstance(event, Event)
            assert (event.path in self.picture) is (event.kind != "add"), event
            if event.kind == "remove":
                del self.picture[event.path]
            else:
                self.picture[event.path] = event.value

    def wanted(self) -> dict[str, Any]:
        test = self.rule.matches_value
        return {
            path: value
            for path, value in self.bus.items()
            if self.rule.matches_path(path) and (test is None or (path != "a/method" and test(value)))
        }


@pytest.mark.parametrize("policy", ["latest", "every"])
@pytest.mark.parametrize("daemon", ["ours", "node-jet 3"])
@settings(deadline=None)
@given(text=st.sampled_from(RULES), steps=st.lists(STEP, max_size=25), between=st.lists(STEP, max_size=5))
def test_fetch_against_a_model(daemon: str, policy: Policy, text: str, steps: list[Any], between: list[Any]) -> None:
    """Whatever happens on the bus and to the connection, reading the events gives the picture of what matches now."""
    model = Model(DAEMONS[daemon], text, policy)
    for name, first, second in steps:
        if name == "put":
            model.put(first, second)
        elif name == "remove":
            model.remove(first)
        elif name == "read":
            model.read()
        else:
            # While there is no connection the bus goes on unseen.
            received, model.wire.hear = model.wire.hear, lambda *_messages: None  # type: ignore[method-assign]
            for step, path, value in between:
                if step == "put":
                    model.put(path, value)
                elif step == "remove":
                    model.remove(path)
            model.wire.hear = received  # type: ignore[method-assign]
            model.reconnect(first)
    model.read()
    assert json.dumps(model.picture, sort_keys=True) == json.dumps(model.wanted(), sort_keys=True)
    known = {path: None if path == "a/method" else value for path, value in model.fetching.known.items()}
    assert json.dumps(known, sort_keys=True) == json.dumps(model.wanted(), sort_keys=True)


@settings(deadline=None)
@given(steps=st.lists(STEP, max_size=30))
def test_latest_ends_in_the_same_picture(steps: list[Any]) -> None:
    """However rarely it is read, policy latest ends in the same picture as policy every, in no more events."""
    latest, every = Model(OURS, "a/**", "latest"), Model(OURS, "a/**", "every")
    for name, first, second in steps:
        for model in (latest, every):
            if name == "put":
                model.put(first, second)
            elif name == "remove":
                model.remove(first)
            elif name == "read":
                model.read()
    waiting = len(latest.fetching.take()), len(every.fetching.take())
    assert waiting[0] <= waiting[1]
    assert every.fetching.conflated == 0
    assert latest.fetching.known == every.fetching.known


SORTED_STEP = st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 9)))


@settings(deadline=None)
@given(steps=st.lists(SORTED_STEP, max_size=20), first=st.integers(1, 3), count=st.integers(1, 3), down=st.booleans())
def test_peer_sorts_where_the_daemon_does_not(
    steps: list[tuple[str, int | None]], first: int, count: int, down: bool
) -> None:
    """On a daemon that does not sort, a sorted fetch still has the right list after every event."""
    wire = Wire(NODE_JET_3)
    fetching = Subscription("f1", rule(sort_by="value", descending=down, first=first, last=first + count - 1))
    wire.fetch(fetching)
    wire.answer_all()
    bus: dict[str, int] = {}
    for path, value in steps:
        if value is not None:
            wire.hear(
                {"method": "f1", "params": {"path": path, "event": "Change" if path in bus else "Add", "value": value}}
            )
            bus[path] = value
        elif path in bus:
            wire.hear({"method": "f1", "params": {"path": path, "event": "Remove"}})
            del bus[path]
        values = sorted(bus.values(), reverse=down)[first - 1 : first + count - 1]
        assert [item.value for item in fetching.items] == values
        taken = fetching.take()
        assert not taken or taken[-1] == fetching.items


def test_other_daemons_do_not_report_nodes() -> None:
    """A fetch with nodes is refused before anything is sent to a daemon that would ignore the wish."""
    wire = Wire({"name": "cjet"})
    with pytest.raises(
        jetbus.Invalid, match=r"the daemon \(cjet\) does not report nodes, only jetd does; leave out nodes"
    ):
        wire.fetch(Subscription("f1", rule("a/**"), nodes=True))
    assert wire.sent() == []
    assert not wire.session.fetches
