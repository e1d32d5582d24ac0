"""The daemon against a plain model of the bus, over random operations of several peers.

The same examples are tried in every run; with JETBUS_TEST_VARY in the environment each run tries others.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.daemon import Daemon
from support.model import METHOD, OK, Model, Outcome, Refused
from support.wire import Wire

PEERS = 3
TRANSPORTS = ("tcp", "unix", "ws")
OWNER_GONE = {"reason": "peer shuts down", "message": "peer shuts down"}

Op = tuple[Any, ...]

peers = st.integers(0, PEERS - 1)
paths = st.sampled_from(["a", "a/b", "a/b/c", "a/B", "b", "b/a", "c"])
texts = st.sampled_from(["", "a", "A", "b", "/", "a/", "/b", "a/b", "c", "b/a"])
values = st.sampled_from([0, 1, 2, 2.5, "", "a", "b", True, False, None, {"x": 1}, {"x": "a"}, [1]])
operands = st.sampled_from([0, 1, 2, "a", "b"])
fetch_ids = st.sampled_from(["f", "g", 1])

path_rules = st.dictionaries(
    st.sampled_from(
        ["equals", "equalsNot", "contains", "containsNot", "startsWith", "startsNotWith", "endsWith", "endsNotWith"]
    ),
    texts,
    max_size=2,
)
path_list_rules = st.dictionaries(
    st.sampled_from(["containsAllOf", "containsOneOf", "equalsOneOf", "equalsNotOneOf"]),
    st.lists(texts, max_size=3),
    max_size=1,
)
value_rules = st.one_of(
    st.fixed_dictionaries({"equals": values}),
    st.fixed_dictionaries({"equalsNot": values}),
    st.fixed_dictionaries({"lessThan": operands}),
    st.fixed_dictionaries({"greaterThan": operands}),
    st.fixed_dictionaries({"isType": st.sampled_from(["number", "string", "boolean", "object"])}),
)
sorts = st.builds(
    lambda first, count, descending: {
        "byPath": True,
        "from": first,
        "to": first + count - 1,
        "descending": descending,
    },
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {}
    if draw(st.booleans()):
        rule["path"] = {**draw(path_rules), **draw(path_list_rules)}
        if draw(st.booleans()):
            rule["path"]["caseInsensitive"] = True
    match draw(st.integers(0, 5)):
        case 0:
            rule["value"] = draw(value_rules)
        case 1:
            rule["valueField"] = {"x": draw(value_rules)}
    if draw(st.integers(0, 3)) == 0:
        rule["sort"] = draw(sorts)
    if draw(st.booleans()):
        rule["together"] = True
    return rule


added = st.one_of(values, st.just(METHOD))
answers = st.sampled_from(["result", "change and result", "error", "owner goes"])
ops = st.one_of(
    st.tuples(st.just("add"), peers, paths, added, st.booleans()),
    st.tuples(st.just("add"), peers, paths, added, st.just(False)),
    st.tuples(st.just("remove"), peers, paths),
    st.tuples(st.just("change"), peers, paths, values),
    st.tuples(st.just("change by owner"), paths, values),
    st.tuples(st.just("changes"), st.lists(st.tuples(paths, values), min_size=2, max_size=6)),
    st.tuples(st.just("set"), peers, paths, values, answers),
    st.tuples(st.just("call"), peers, paths, st.lists(values, max_size=2), answers),
    st.tuples(st.just("fetch"), peers, fetch_ids, rules()),
    st.tuples(st.just("unfetch"), peers, fetch_ids),
    st.tuples(st.just("get"), peers, rules()),
    st.tuples(st.just("reconnect"), peers),
)

BEGIN: list[Op] = [
    ("add", 0, "a/b", 0, False),
    ("add", 1, "b/a", 1, True),
    ("add", 2, "c", METHOD, False),
    ("fetch", 0, "f", {}),
    ("fetch", 1, 1, {"together": True}),
    ("fetch", 2, "g", {"value": {"isType": "number"}, "together": True}),
]
"""Something to be told of, and somebody to be told: what is drawn at random often has neither."""


class Run:
    """One example: peers on the daemon and in the model, compared after each operation."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.model = Model()
        self.witness = daemon.connect()
        self.wires: list[Wire] = [daemon.connect(transport) for transport in TRANSPORTS]
        self.views: dict[tuple[int, Any], dict[int, Any]] = defaultdict(dict)

    def close(self) -> None:
        for wire in (*self.wires, self.witness):
            wire.close()

    def apply(self, op: Op) -> None:
        self.model.received.clear()
        name, *args = op
        getattr(self, f"_{name.replace(' ', '_')}")(*args)
        self._compare_events()

    def _add(self, peer: int, path: str, value: Any, fetch_only: bool) -> None:
        params: dict[str, Any] = {"path": path}
        if value is METHOD:
            fetch_only = False
        else:
            params["value"] = value
        if fetch_only:
            params["fetchOnly"] = True
        self._same(peer, "add", params, self.model.add(peer, path, value, fetch_only))

    def _remove(self, peer: int, path: str) -> None:
        self._same(peer, "remove", {"path": path}, self.model.remove(peer, path))

    def _change(self, peer: int, path: str, value: Any) -> None:
        self._same(peer, "change", {"path": path, "value": value}, self.model.change(peer, path, value))

    def _change_by_owner(self, path: str, value: Any) -> None:
        if path in self.model.elements:
            self._change(self.model.elements[path].owner, path, value)

    def _changes(self, changes: list[tuple[str, Any]]) -> None:
        """Changes that arrive in one message, of each owner."""
        for peer, wire in enumerate(self.wires):
            batch = []
            for path, value in changes:
                element = self.model.elements.get(path)
                if element is not None and element.owner == peer and self.model.change(peer, path, value) is OK:
                    batch.append({"method": "change", "params": {"path": path, "value": value}})
            if batch:
                wire.send(batch)
                wire.result("echo", {})

    def _set(self, peer: int, path: str, value: Any, answer: str) -> None:
        self._routed(peer, "set", path, {"path": path, "value": value}, {"value": value}, answer)

    def _call(self, peer: int, path: str, args: list[Any], answer: str) -> None:
        self._routed(peer, "call", path, {"path": path, "args": args}, args, answer)

    def _routed(
        self,
        peer: int,
        service: Literal["set", "call"],
        path: str,
        params: dict[str, Any],
        routed: Any,
        answer: str,
    ) -> None:
        owner = self.model.route(path, is_call=service == "call")
        if isinstance(owner, Refused):
            self._same(peer, service, params, owner)
            return
        self.wires[peer].send({"id": "routed", "method": service, "params": params})
        request = self._next_request(owner)
        assert request == {"id": request["id"], "method": path, "params": routed}
        if answer == "owner goes" and owner != peer:
            self._reconnect(owner)
            error = {"code": -32603, "message": "Internal error", "data": OWNER_GONE}
            assert self.wires[peer].response("routed") == {"id": "routed", "error": error}
            return
        if answer == "change and result" and service == "set":
            self.wires[owner].notify("change", {"path": path, "value": params["value"]})
            assert self.model.change(owner, path, params["value"]) is OK
        outcome = {"error": {"code": 7, "message": "no"}} if answer == "error" else {"result": [answer, path]}
        self.wires[owner].send({"id": request["id"], **outcome})
        assert self.wires[peer].response("routed") == {"id": "routed", **outcome}

    def _fetch(self, peer: int, fetch_id: Any, rule: dict[str, Any]) -> None:
        outcome = self.model.fetch(peer, fetch_id, rule)
        if outcome is OK:
            self.views.pop((peer, fetch_id), None)
        self._same(peer, "fetch", {"id": fetch_id, **rule}, outcome)
        came_first = len(self.wires[peer].inbox)
        events = self.model.received.get((peer, fetch_id), [])
        expected = 1 if "sort" in rule else len(events)
        if outcome is OK:
            assert came_first == (expected if isinstance(fetch_id, int) else 0), "events before the response"

    def _unfetch(self, peer: int, fetch_id: Any) -> None:
        self._same(peer, "unfetch", {"id": fetch_id}, self.model.unfetch(peer, fetch_id))

    def _get(self, peer: int, rule: dict[str, Any]) -> None:
        rule = {key: value for key, value in rule.items() if key != "sort"}
        assert as_text(self.wires[peer].result("get", rule)) == as_text(self.model.get(rule))

    def _reconnect(self, peer: int) -> None:
        self.wires[peer].close()
        self.model.disconnect(peer)
        self._await_same_elements()
        self.wires[peer] = self.daemon.connect(TRANSPORTS[peer])

    def _await_same_elements(self) -> None:
        """Ask until the daemon has noticed that a peer is gone."""
        deadline = time.monotonic() + 10
        while self.witness.result("get", {}) != self.model.get({}):
            assert time.monotonic() < deadline, "the daemon keeps other elements than the model"

    def _same(self, peer: int, service: str, params: dict[str, Any], expected: Outcome) -> None:
        response = self.wires[peer].request(service, params)
        if not isinstance(expected, Refused):
            assert response.get("result") is True, response
            return
        assert response["error"]["code"] == -32602, response
        if expected.data is not None:
            assert response["error"]["data"] == expected.data

    def _next_request(self, owner: int) -> Any:
        """The next routed request to an owner; events before it stay in the inbox."""
        wire = self.wires[owner]
        skipped = []
        while "id" not in (message := json.loads(text := wire.receive_text())):
            skipped.append(text)
        wire.inbox.extendleft(reversed(skipped))
        return message

    def _compare_events(self) -> None:
        for peer, wire in enumerate(self.wires):
            received: dict[Any, list[Any]] = defaultdict(list)
            for message in wire.receive_all():
                assert message.keys() == {"method", "params"}, message
                received[message["method"]].append(message["params"])
            for fetch_id, fetch in self.model.fetches[peer].items():
                events = received.pop(fetch_id, [])
                if "sort" in fetch.rule:
                    self._compare_window(peer, fetch_id, events)
                else:
                    notified = [event for params in events for event in one_by_one(params, fetch.rule)]
                    assert as_text(notified) == as_text(self.model.received.get((peer, fetch_id), []))
            assert not received, f"events of no fetch: {dict(received)}"

    def _compare_window(self, peer: int, fetch_id: Any, events: list[Any]) -> None:
        """A client's list of a sorted fetch equals the window of the model."""
        fetch = self.model.fetches[peer][fetch_id]
        first = fetch.rule["sort"]["from"]
        view = self.views[peer, fetch_id]
        for event in events:
            for entry in event["changes"]:
                view[entry.pop("index")] = entry
            for index in [index for index in view if index >= first + event["n"]]:
                del view[index]
        window = self.model.window(fetch)
        expected = {}
        for index, path in enumerate(window, first):
            entry = self.model.get({"path": {"equals": path}})[0]
            del entry["event"]
            expected[index] = entry
        assert view.keys() == expected.keys()
        for index, entry in expected.items():
            assert as_text(view[index]) == as_text(entry)


def one_by_one(params: Any, rule: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a notification; changes that come together, to a fetch that asked for it, one after the other."""
    if isinstance(params, dict):
        assert not ("together" in rule and params["event"] == "change"), "a change that comes alone"
        return [params]
    assert "together" in rule
    changes = zip(params[::3], params[1::3], params[2::3], strict=True)
    return [{"path": path, "event": "change", "value": value} for path, value, _fetch_only in changes]


def as_text(message: Any) -> str:
    """JSON text, in which true is not 1 and the order of keys counts."""
    return json.dumps(message)


@pytest.fixture(scope="module")
def model_daemon(shared_daemons: Callable[..., Daemon]) -> Daemon:
    return shared_daemons()


@settings(
    max_examples=int(os.environ.get("JETBUS_TEST_EXAMPLES", "400")),
    deadline=None,
    derandomize="JETBUS_TEST_VARY" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(sequence=st.lists(ops, min_size=10, max_size=40))
def test_daemon_equals_model(model_daemon: Daemon, sequence: list[Op]) -> None:
    """Whatever peers do, each gets the results and events that a plain model of the bus gives."""
    model_daemon.await_empty()
    run = Run(model_daemon)
    try:
        for op in (*BEGIN, *sequence):
            run.apply(op)
    finally:
        run.close()
    model_daemon.check()
