"""Random owners of both protocols against fetchers of both, with rules: what they were told is what is there.

Each example sends random adds, changes and removes from several owners in random chunks, while fetches begin and end
in the midst of it. At the end every fetcher's picture, made of nothing but the events it was told, must be what `get`
gives for its rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.binary.client import BinaryPeer, connect
from support.binary.layout import (
    ADD_METHOD,
    ADD_STATE,
    NOTIFY,
    OCTETS,
    REMOVE_METHOD,
    REMOVE_STATE,
    FetchEvent,
    SortedNotification,
    Value,
    event,
    js,
    key,
    options,
    packed,
    text,
)
from support.daemon import Daemon
from support.wire import LENGTH, TcpWire

RULES: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("m/", {}),
    ("m/a", {}),
    ("", {"path": {"endsWith": "b"}}),
    ("m/", {"value": {"lessThan": 3}}),
    ("", {"value": {"isType": "string"}}),
    ("", {"every": True}),
]
SORTS: list[dict[str, Any]] = [
    {"byPath": True},
    {"byValue": "number", "to": 3},
    {"byValue": "string", "descending": True, "from": 2, "to": 3},
]
PATHS = ["m/a", "m/ab", "m/b", "n/a", "n/b"]
SEEN_AS_JSON = [1, 2, 3, 4, "x", "y", {"mime": "application/octet-stream", "base64": "AQ=="}]
VALUES = [*(js(i) for i in range(1, 5)), text("x"), text("y"), Value(OCTETS, b"\x01")]


class Step(NamedTuple):
    """One thing that happens: an owner does something, or a fetcher begins or ends a fetch."""

    who: int
    what: str
    path: str
    value: int
    rule: int


steps = st.lists(
    st.builds(
        Step,
        st.integers(0, 2),
        st.sampled_from(
            ["add", "add", "add read-only", "method", "change", "change", "change", "remove", "fetch", "end"]
        ),
        st.sampled_from(PATHS),
        st.integers(0, len(VALUES) - 1),
        st.integers(0, len(RULES) + len(SORTS) - 1),
    ),
    min_size=5,
    max_size=60,
)


@pytest.fixture(scope="module")
def modelled() -> Iterator[Daemon]:
    with Daemon.start("--tree", "flat") as daemon:
        yield daemon


class BinaryOwner:
    """Collects what it does and sends it in one piece."""

    def __init__(self, peer: BinaryPeer) -> None:
        self.peer = peer
        self.pending: list[bytes] = []

    def do(self, step: Step) -> None:
        value = packed(VALUES[step.value])
        self.pending += {
            "add": [event(ADD_STATE, key(step.path) + value)],
            "add read-only": [event(ADD_STATE, key(step.path) + value + options({"fetchOnly": True}))],
            "method": [event(ADD_METHOD, key(step.path))],
            "change": [event(NOTIFY, key(step.path) + value)],
            "remove": [event(REMOVE_STATE, key(step.path)), event(REMOVE_METHOD, key(step.path))],
        }[step.what]

    def flush(self) -> None:
        if self.pending:
            self.peer.send(*self.pending)
            self.pending.clear()

    def settle(self) -> None:
        self.peer.barrier()


class JsonOwner:
    """The same in JSON."""

    def __init__(self, wire: TcpWire) -> None:
        self.wire = wire
        self.pending: list[bytes] = []

    def do(self, step: Step) -> None:
        with_value = {"path": step.path, "value": SEEN_AS_JSON[step.value]}
        method, params = {
            "add": ("add", with_value),
            "add read-only": ("add", {**with_value, "fetchOnly": True}),
            "method": ("add", {"path": step.path}),
            "change": ("change", with_value),
            "remove": ("remove", {"path": step.path}),
        }[step.what]
        self.pending.append(json.dumps({"method": method, "params": params}).encode())

    def flush(self) -> None:
        self.wire.send_raw(b"".join(LENGTH.pack(len(text)) + text for text in self.pending))
        self.pending.clear()

    def settle(self) -> None:
        self.wire.barrier()


class BinaryFetcher:
    """Fetches on one connection, each with its picture."""

    def __init__(self, peer: BinaryPeer) -> None:
        self.peer = peer
        self.rules: dict[int, int] = {}
        self.elements: dict[int, dict[str, tuple[Value, bool]]] = {}
        self.windows: dict[int, list[tuple[str, Any]]] = {}

    def fetch(self, rule: int) -> None:
        start, named = _rule(rule)
        fetch_id = self.peer.fetch(start, **named)
        assert fetch_id not in self.rules
        self.rules[fetch_id] = rule
        self.elements[fetch_id] = {}
        self.windows[fetch_id] = []

    def end(self) -> None:
        if self.rules:
            fetch_id = next(iter(self.rules))
            self.peer.unfetch(fetch_id)
            self._take_in()
            del self.rules[fetch_id]

    def check(self) -> None:
        """Nothing happens any more: every picture is what get gives."""
        for fetch_id, rule in self.rules.items():
            start, named = _rule(rule)
            matches = self.peer.get(start, **named)
            self._take_in()
            if "sort" in named:
                assert [path for path, _ in self.windows[fetch_id]] == [match.path for match in matches]
                shown = [match.value for match in matches]
                values = [value for _, value in self.windows[fetch_id]]
                assert values == [_seen(value) for value in shown]
            else:
                assert self.elements[fetch_id] == {m.path: (m.value, m.fetch_only) for m in matches}

    def _take_in(self) -> None:
        for arrived in self.peer.inbox:
            if isinstance(arrived, SortedNotification):
                self._put(arrived)
            else:
                assert isinstance(arrived, FetchEvent), arrived
                self._tell(arrived)
        self.peer.inbox.clear()

    def _tell(self, received: FetchEvent) -> None:
        assert received.fetch_id in self.rules, f"event after unfetch: {received}"
        elements = self.elements[received.fetch_id]
        assert (received.path in elements) == (received.event != "add"), (received, elements)
        if received.event == "remove":
            del elements[received.path]
        else:
            elements[received.path] = received.value, received.fetch_only

    def _put(self, window: SortedNotification) -> None:
        assert window.fetch_id in self.rules, f"told after unfetch: {window}"
        entries = self.windows[window.fetch_id]
        first = SORTS[self.rules[window.fetch_id] - len(RULES)].get("from", 1)
        for change in window.json["changes"]:
            at = change["index"] - first
            assert at <= len(entries), (window, entries)
            entries[at : at + 1] = [(change["path"], change.get("value"))]
        del entries[window.json["n"] :]


class JsonFetcher:
    """Fetches of a JSON peer, which must see the same elements."""

    def __init__(self, wire: TcpWire) -> None:
        self.wire = wire
        self.elements: dict[str, dict[str, Any]] = {}

    def fetch(self, rule: int) -> None:
        name = f"f{rule}"
        if rule < len(RULES) and name not in self.elements:
            self.elements[name] = {}
            assert self.wire.result("fetch", {"id": name, **_json_rule(rule)}) is True

    def end(self) -> None:
        if self.elements:
            name = next(iter(self.elements))
            assert self.wire.result("unfetch", {"id": name}) is True
            self._take_in()
            del self.elements[name]

    def check(self) -> None:
        for name, elements in self.elements.items():
            matches = self.wire.result("get", _json_rule(int(name[1:])))
            self._take_in()
            assert elements == {match.pop("path"): {**match, "event": None} for match in matches}

    def _take_in(self) -> None:
        for line in self.wire.inbox:
            message = json.loads(line)
            params, elements = message["params"], self.elements[message["method"]]
            path, name = params.pop("path"), params["event"]
            assert (path in elements) == (name != "add"), line
            if name == "remove":
                del elements[path]
            else:
                elements[path] = {**elements.get(path, {}), **params, "event": None}  # fetchOnly is told once
        self.wire.inbox.clear()


def _rule(rule: int) -> tuple[str, dict[str, Any]]:
    return RULES[rule] if rule < len(RULES) else ("", {"sort": SORTS[rule - len(RULES)]})


def _json_rule(rule: int) -> dict[str, Any]:
    start, named = RULES[rule]
    path = {**named.get("path", {}), **({"startsWith": start} if start else {})}
    return {**named, **({"path": path} if path else {})}


def _seen(value: Value) -> Any:
    return None if value.type == 0 else value.json if value.type == 1 else SEEN_AS_JSON[VALUES.index(value)]


@settings(max_examples=50, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(happens=steps, chunk=st.integers(1, 12))
def test_pictures_are_true(modelled: Daemon, happens: list[Step], chunk: int) -> None:
    """Whatever happens in whatever chunks, every fetcher of either protocol has a true picture at the end."""
    with ExitStack() as stack:
        owners: list[BinaryOwner | JsonOwner] = [
            BinaryOwner(stack.enter_context(connect(modelled, "tcp"))),
            BinaryOwner(stack.enter_context(connect(modelled, "unix"))),
            JsonOwner(_json(modelled, stack)),
        ]
        fetchers: list[BinaryFetcher | JsonFetcher] = [
            BinaryFetcher(stack.enter_context(connect(modelled, "tcp"))),
            BinaryFetcher(stack.enter_context(connect(modelled, "ws"))),
            JsonFetcher(_json(modelled, stack)),
        ]
        for number, step in enumerate(happens):
            if step.what in ("fetch", "end"):
                fetcher = fetchers[step.who]
                fetcher.fetch(step.rule) if step.what == "fetch" else fetcher.end()
            else:
                owners[step.who].do(step)
            if number % chunk == 0:
                _flush(owners)
        _flush(owners)
        for owner in owners:
            owner.settle()
        for fetcher in fetchers:
            fetcher.check()
    modelled.await_empty()
    modelled.check()


def _flush(owners: list[BinaryOwner | JsonOwner]) -> None:
    for owner in owners:
        owner.flush()


def _json(daemon: Daemon, stack: ExitStack) -> TcpWire:
    wire = stack.enter_context(daemon.connect("tcp"))
    assert isinstance(wire, TcpWire)
    return wire
