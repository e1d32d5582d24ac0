"""Looking back over the bus: the methods below $jet/journal/, get with asOf and fetch with since."""

from __future__ import annotations

import base64
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jetbus
from jetbus import journal
from jetbus.journal.pages import read_page
from jetbus.wire import binary
from support.daemon import Daemon
from support.wire import DEADLINE_S, Wire

StartDaemon = Callable[..., Daemon]
ARROW = "application/vnd.apache.arrow.stream"
PROTOCOLS = ["JSON", "binary"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def daemon(start_daemon: StartDaemon, directory: Path) -> Daemon:
    """A daemon that keeps a journal."""
    return start_daemon("--journal", str(directory))


def url_of(daemon: Daemon, protocol: str) -> str:
    return {"JSON": f"jet://{daemon.listens['tcp']}", "binary": f"jetb://{daemon.listens['binary']}"}[protocol]


def instant() -> int:
    """An instant after all that was answered and before all that is not yet sent."""
    now_us = time.time_ns() // 1000
    for us in (now_us, now_us + 1):
        while time.time_ns() // 1000 <= us:
            pass
    return now_us + 1


# -- methods


@pytest.fixture(params=PROTOCOLS)
def peer(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[jetbus.Peer]:
    """A peer of either protocol."""
    with jetbus.Peer(url_of(daemon, request.param), name="reader") as made:
        yield made


def busy(daemon: Daemon, changes: int = 100) -> None:
    """Let something happen: two states that count up, a third one, a method that is called."""
    with daemon.connect() as wire, daemon.connect() as caller:
        for path, value in (("a/x", 0), ("a/y", 0), ("b/z", "quiet")):
            wire.result("add", {"path": path, "value": value})
        wire.result("add", {"path": "a/m"})
        for number in range(1, changes + 1):
            for path in ("a/x", "a/y"):
                wire.notify("change", {"path": path, "value": number})
        wire.barrier()
        caller.notify("call", {"path": "a/m", "args": [1]})
        caller.barrier()


def pages(peer: jetbus.Peer, method: str, going: str, **args: Any) -> list[Any]:
    """All pages of a method, up to one that says nothing of another or has no rows."""
    found = []
    while True:
        page = peer.call(f"$jet/journal/{method}", **args)
        assert isinstance(page, jetbus.Blob)
        assert page.mime == ARROW
        table, go_on = read_page(page)
        found.append(table)
        if go_on is None or not table.num_rows:
            return found
        args[going] = go_on


def rows(tables: list[Any]) -> list[dict[str, Any]]:
    received: list[dict[str, Any]] = pa.concat_tables(
        [table.replace_schema_metadata(None) for table in tables]
    ).to_pylist()
    return received


def test_offsets(peer: jetbus.Peer, daemon: Daemon, directory: Path) -> None:
    """Offsets tell which bus it is, and seq and instant of the first and last event, the newest included."""
    busy(daemon)
    received = peer.call("$jet/journal/offsets")
    identity = json.loads((directory / "journal.json").read_text())
    assert {key: received[key] for key in ("bus", "id", "first")} == {
        "bus": identity["bus"],
        "id": identity["id"],
        "first": 1,
    }
    assert received["last"] >= 204  # four adds and two hundred changes
    table = journal.open(directory).table(columns=["seq", "ts"])
    instants = dict(zip(table["seq"].to_pylist(), table["ts"].cast(pa.int64()).to_pylist(), strict=True))
    assert (received["first_ts"], received["last_ts"]) == (instants[received["first"]], instants[received["last"]])


def test_offsets_tell_how_far_time_has_come(peer: jetbus.Peer, directory: Path) -> None:
    """Offsets tell an instant that goes on while nothing happens; no event that comes later is before it."""
    peer.add_state("quiet", 1)
    before = peer.call("$jet/journal/offsets")
    while (later := peer.call("$jet/journal/offsets"))["now"] <= before["now"]:
        pass
    assert (later["last"], later["last_ts"]) == (before["last"], before["last_ts"])
    assert before["last_ts"] <= before["now"] <= time.time_ns() // 1000
    peer.add_state("after", 1)
    last = peer.call("$jet/journal/offsets")["last"]
    table = journal.open(directory).table(columns=["ts"], seq=later["last"] + 1, seq_until=last + 1)
    assert min(table["ts"].cast(pa.int64()).to_pylist()) > later["now"]


RANGES: dict[str, dict[str, Any]] = {
    "all": {},
    "from a seq": {"seq": 50},
    "to a seq": {"seq": 50, "seqUntil": 60},
    "rule as text": {"rule": "a/x"},
    "rule as parameters": {"rule": {"path": {"startsWith": "b/"}}},
    "rule with values": {"rule": "a/** value>90"},
    "columns": {"columns": ["path", "value"]},
    "columns without seq, with a rule": {"columns": ["value"], "rule": "a/y"},
    "events": {"events": ["add", "call", "start"]},
    "everything at once": {"seq": 10, "seqUntil": 150, "rule": "a/*", "columns": ["seq", "path"], "events": ["change"]},
}


@pytest.mark.parametrize("limit", [None, 7, 40], ids=["one page", "pages of 7", "pages of 40"])
@pytest.mark.parametrize("asked", RANGES.values(), ids=RANGES)
def test_range(asked: dict[str, Any], limit: int | None, shared_range: tuple[jetbus.Peer, Any]) -> None:
    """A range has what a reader of the files would read, page by page, with rule, columns and events."""
    peer, read = shared_range
    found = pages(peer, "range", "seq", **asked, **({} if limit is None else {"limit": limit}))
    names = {"seqUntil": "seq_until"}
    given = {names.get(name, name): value for name, value in asked.items()}
    rule = given.pop("rule", None)
    if isinstance(rule, dict):
        rule = "b/**"
    expected = read.table(rule, **given)
    assert rows(found) == expected.to_pylist()
    assert found[0].schema.names == expected.schema.names
    assert all(table.num_rows <= (limit or 20_000) for table in found)
    assert len(found) > (expected.num_rows - 1) // (limit or 20_000)


@pytest.fixture(scope="module")
def shared_range(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[jetbus.Peer, Any]]:
    """A peer that reads and does nothing else, and the same journal read from its files."""
    directory = tmp_path_factory.mktemp("journal")
    with Daemon.start("--journal", str(directory)) as daemon:
        busy(daemon)
        daemon.await_empty()
        with jetbus.Peer(url_of(daemon, "binary")) as peer:
            peer.call("$jet/journal/offsets")
            yield peer, journal.open(directory)


def test_range_goes_on_where_it_ended(peer: jetbus.Peer, daemon: Daemon) -> None:
    """At the end of the log a page names the seq that is yet to come; asked again there, it has what has come."""
    busy(daemon, changes=3)
    _, go_on = read_page(peer.call("$jet/journal/range", seq=1))
    assert go_on is not None
    busy(daemon, changes=4)
    table, _ = read_page(peer.call("$jet/journal/range", seq=go_on, events=["change"]))
    assert table["value"].to_pylist() == ["1", "1", "2", "2", "3", "3", "4", "4"]


def test_range_by_instants(peer: jetbus.Peer, daemon: Daemon) -> None:
    """Since and until cut a range: since is in it, until is not."""
    with daemon.connect() as wire:
        wire.result("add", {"path": "a", "value": 0})
        first = instant()
        wire.result("change", {"path": "a", "value": 1})
        second = instant()
        wire.result("change", {"path": "a", "value": 2})
        (table,) = pages(peer, "range", "seq", rule="a", since=first, until=second)[:1]
        assert table["value"].to_pylist() == ["1"]
        (table,) = pages(peer, "range", "seq", rule="a", since="-1h", until="now")[:1]
        assert table["value"].to_pylist() == ["0", "1", "2"]
        ts = [round(moment.timestamp() * 1e6) for moment in table["ts"].to_pylist()]
        (table,) = pages(peer, "range", "seq", rule="a", since=ts[1], until=ts[2])[:1]
        assert table["value"].to_pylist() == ["1"]


LIMITS = (1, 3, 1000)


def test_as_of(peer: jetbus.Peer, daemon: Daemon) -> None:
    """The tree of an instant or after a seq comes in order of creation, page by page, with its size."""
    with daemon.connect() as wire:
        for number in range(7):
            wire.result("add", {"path": f"a/{9 - number}", "value": number})
        last = peer.call("$jet/journal/offsets")["last"]
        then = instant()
        wire.result("remove", {"path": "a/5"})
        wire.result("change", {"path": "a/9", "value": "later"})
        looks: list[dict[str, Any]] = [{"seq": last}, {"instant": then}, {"seq": last, "rule": "a/*"}]
        for asked, limit in product(looks, LIMITS):
            found = pages(peer, "as_of", "offset", limit=limit, **asked)
            assert len(found) >= -(-7 // limit)
            received = rows(found)
            assert [(row["path"], row["value"]) for row in received] == [(f"a/{9 - n}", str(n)) for n in range(7)]
            assert {int(table.schema.metadata[b"total"]) for table in found} == {7}
        (now,) = pages(peer, "as_of", "offset", rule="a/* value>4")
        assert [(row["path"], row["value"]) for row in now.to_pylist()] == [("a/4", "5"), ("a/3", "6")]


def test_history(peer: jetbus.Peer, daemon: Daemon) -> None:
    """The history of a path has its values over time, page by page."""
    busy(daemon, changes=5)
    daemon.await_empty()
    values = [("add", "0"), *[("change", str(n)) for n in range(1, 6)], ("remove", "5")]
    for limit in LIMITS:
        received = rows(pages(peer, "history", "offset", path="a/x", limit=limit))
        assert [(row["event"], row["value"]) for row in received] == values
    (table,) = pages(peer, "history", "offset", path="a/x", since=instant())
    assert table.num_rows == 0


def test_how_pages_travel(daemon: Daemon) -> None:
    """Over JSON a page is base64 with its type, over binary the very bytes."""
    with daemon.connect() as wire, jetbus.Peer(url_of(daemon, "binary")) as peer:
        args: dict[str, Any] = {"seq": 1, "seqUntil": 2}
        received = wire.result("call", {"path": "$jet/journal/range", "args": args})
        assert received.keys() == {"mime", "base64"}
        assert received["mime"] == ARROW
        page = peer.call("$jet/journal/range", **args)
        assert bytes(page) == base64.b64decode(received["base64"])
        assert pa.ipc.open_stream(page).read_all()["event"].to_pylist() == ["start"]


WRONG: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "no object": ("range", [1], {"reason": "args"}),
    "seq is text": ("range", {"seq": "1"}, {"wrongType": "seq"}),
    "seq is true": ("range", {"seq": True}, {"wrongType": "seq"}),
    "seq is negative": ("range", {"seq": -1}, {"wrongType": "seq"}),
    "seq is beyond all": ("range", {"seq": 1 << 63}, {"wrongType": "seq"}),
    "offset is beyond all": ("history", {"path": "a", "offset": 1 << 63}, {"wrongType": "offset"}),
    "late is a number": ("range", {"late": 1}, {"wrongType": "late"}),
    "seq before the first": ("range", {"seq": 0}, {"reason": "journalGone"}),
    "seqUntil is a fraction": ("range", {"seqUntil": 1.5}, {"wrongType": "seqUntil"}),
    "limit is negative": ("range", {"limit": -1}, {"wrongType": "limit"}),
    "since is no instant": ("range", {"since": "someday"}, {"reason": "instant"}),
    "until is no instant": ("range", {"until": {}}, {"reason": "instant"}),
    "columns are no list": ("range", {"columns": "seq"}, {"wrongType": "columns"}),
    "unknown column": ("range", {"columns": ["seq", "color"]}, {"reason": "columns"}),
    "unknown event": ("range", {"events": ["explode"]}, {"reason": "events"}),
    "events are no texts": ("range", {"events": [1]}, {"wrongType": "events"}),
    "rule is a number": ("range", {"rule": 1}, {"wrongType": "rule"}),
    "rule is no rule": ("range", {"rule": "value>"}, {"invalidRule": "value>"}),
    "unknown operator": ("as_of", {"rule": {"path": {"near": "a"}}}, {"invalidRule": "near"}),
    "instant and seq": ("as_of", {"instant": "now", "seq": 1}, {"reason": "args"}),
    "no instant": ("as_of", {"instant": True}, {"reason": "instant"}),
    "offset is text": ("as_of", {"offset": "1"}, {"wrongType": "offset"}),
    "no path": ("history", {}, {"wrongType": "path"}),
    "path is a number": ("history", {"path": 1}, {"wrongType": "path"}),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a journal for tests that only ask."""
    with Daemon.start("--journal", str(tmp_path_factory.mktemp("journal"))) as daemon:
        yield daemon


@pytest.mark.parametrize(("method", "args", "data"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(method: str, args: Any, data: dict[str, Any], shared: Daemon) -> None:
    """A wrong argument is refused with its name."""
    with shared.connect() as wire:
        error = wire.error("call", {"path": f"$jet/journal/{method}", "args": args})
    assert error["code"] == -32602
    assert {key: error["data"].get(key) for key in data} == data
    shared.check()


NOT_THE_PAST: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": ("someday", {"reason": "instant"}),
    "true": (True, {"reason": "instant"}),
    "a list": ([], {"reason": "instant"}),
    "a fraction": (1.5, {"reason": "instant"}),
    "no day": ("2026-02-30", {"reason": "instant"}),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("moment", "data"), NOT_THE_PAST.values(), ids=NOT_THE_PAST)
def test_wrong_instants(moment: Any, data: dict[str, Any], protocol: str, shared: Daemon) -> None:
    """Get and fetch refuse what is no instant, and say how to write one."""
    with jetbus.Peer(url_of(shared, protocol)) as peer:
        with pytest.raises(jetbus.JetError) as refused:
            peer.get_all("a", as_of=moment)
        assert data.items() <= refused.value.data.items()
        with pytest.raises(jetbus.JetError) as refused:
            peer.fetch("a", since=moment).ready()
        assert data.items() <= refused.value.data.items()
        assert peer.get_all("a") == {}
    shared.check()


def test_the_past_is_not_sorted(shared: Daemon) -> None:
    """A sorted get or fetch shows the present only."""
    with shared.connect() as wire:
        assert wire.error("get", {"asOf": "now", "sort": {}})["data"]["invalidRule"] == "sort"
        assert wire.error("fetch", {"id": "f", "since": "now", "sort": {}})["data"]["invalidRule"] == "sort"
        assert wire.result("fetch", {"id": "f"}) is True, "the id is free"


# -- who may

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("call", {"path": "$jet/journal/offsets"}),
    ("call", {"path": "$jet/journal/range"}),
    ("call", {"path": "$jet/journal/as_of"}),
    ("call", {"path": "$jet/journal/history", "args": {"path": "a"}}),
    ("get", {"asOf": "now"}),
    ("fetch", {"id": "f", "since": "now"}),
]
GROUPS: dict[str, tuple[list[str], list[str]]] = {
    "groups": (["--journal-groups", "staff,admins"], ["ann"]),
    "no groups": ([], []),
}


@pytest.mark.parametrize(("options", "who_may"), GROUPS.values(), ids=GROUPS)
def test_groups(
    options: list[str], who_may: list[str], start_daemon: StartDaemon, directory: Path, tmp_path: Path
) -> None:
    """On a bus with users only those of journal_groups may query the past; without groups nobody may."""
    users = tmp_path / "users.json"
    accounts = {
        "ann": {"password": "a", "auth": {"fetchGroups": ["staff"]}},
        "bob": {"password": "b", "auth": {"fetchGroups": ["guests"], "callGroups": ["staff"]}},
    }
    users.write_text(json.dumps({"users": accounts}))
    daemon = start_daemon("--journal", str(directory), "--users", str(users), *options)
    for user in ("ann", "bob", None):
        with daemon.connect() as wire:
            if user is not None:
                wire.result("authenticate", {"user": user, "password": user[0]})
            for service, params in METHODS:
                answer = wire.request(service, params)
                assert ("result" in answer) is (user in who_may), (user, service, params, answer)
                if user not in who_may:
                    assert answer["error"]["data"]["noAccess"].startswith("$jet/journal")
            assert wire.result("get", {}) == []


def test_groups_are_reloaded(start_daemon: StartDaemon, directory: Path, tmp_path: Path) -> None:
    """On SIGHUP journal_groups counts anew, also for who is connected already."""
    users, settings = tmp_path / "users.json", tmp_path / "jetd.toml"
    users.write_text(json.dumps({"users": {"ann": {"password": "a", "auth": {"fetchGroups": ["staff"]}}}}))
    settings.write_text('journal_groups = ["staff"]\n')
    daemon = start_daemon("--config", str(settings), "--journal", str(directory), "--users", str(users))
    with daemon.connect() as wire:
        wire.result("authenticate", {"user": "ann", "password": "a"})
        for groups, may in ((["admins"], False), (["admins", "staff"], True)):
            assert ("result" in wire.request("get", {"asOf": "now"})) is not may
            settings.write_text(f"journal_groups = {json.dumps(groups)}\n")
            daemon.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + DEADLINE_S
            while ("result" in wire.request("get", {"asOf": "now"})) is not may:
                assert time.monotonic() < deadline, daemon.stderr()
            for service, params in METHODS:
                assert ("result" in wire.request(service, params)) is may, (service, params)


def test_groups_without_users(start_daemon: StartDaemon, directory: Path) -> None:
    """Without users everybody may look back, unless groups are set that nobody can have then."""
    open_to_all = start_daemon("--journal", str(directory))
    closed = start_daemon("--journal", str(directory.with_name("other")), "--journal-groups", "staff")
    with open_to_all.connect() as wire, closed.connect() as other:
        for service, params in METHODS:
            assert "result" in wire.request(service, params)
            assert "noAccess" in other.error(service, params)["data"]


# -- get with asOf


class Doings:
    """Random things that owners do; after each, what a get gave and the instant."""

    def __init__(self, daemon: Daemon, chance: random.Random) -> None:
        self._daemon = daemon
        self._chance = chance
        self._owners: list[dict[str, Wire]] = [{}]
        self._wires = [daemon.connect()]
        self.witness = daemon.connect()
        self.seen: list[tuple[int, list[Any]]] = []

    def _owned(self) -> dict[str, Wire]:
        return {path: wire for owner in self._owners for path, wire in owner.items()}

    def do(self) -> None:
        """Do one thing and look at the tree."""
        chance = self._chance
        deed = chance.choice([self._add, self._add, self._change, self._change, self._change, self._remove, self._go])
        deed()
        then = instant()
        self.seen.append((then, self.witness.result("get", {})))
        instant()

    def _add(self) -> None:
        path = f"{self._chance.choice('abc')}/{self._chance.randrange(6)}"
        which = self._chance.randrange(len(self._wires))
        value: dict[str, Any] = self._chance.choice([{}, {"value": self._chance.randrange(100)}, {"value": None}])
        more = {"fetchOnly": True} if self._chance.random() < 0.2 else {}
        if "result" in self._wires[which].request("add", {"path": path, **value, **more}):
            self._owners[which][path] = self._wires[which]

    def _change(self) -> None:
        for path, wire in self._owned().items():
            if self._chance.random() < 0.5:
                wire.request("change", {"path": path, "value": self._chance.choice([1, "ä", [1.50, {"x": None}], 60])})

    def _remove(self) -> None:
        if owned := self._owned():
            path = self._chance.choice(list(owned))
            assert owned[path].result("remove", {"path": path}) is True
            for owner in self._owners:
                owner.pop(path, None)

    def _go(self) -> None:
        """An owner goes, another one comes."""
        self._wires.pop(0).close()
        mine = self._owners.pop(0)
        while any(entry["path"] in mine for entry in self.witness.result("get", {})):
            pass
        self._wires.append(self._daemon.connect())
        self._owners.append({})

    def close(self) -> None:
        for wire in (*self._wires, self.witness):
            wire.close()


RULES: list[dict[str, Any]] = [
    {},
    {"path": {"startsWith": "a/"}},
    {"path": {"equals": "b/1"}},
    {"path": {"contains": "/"}, "value": {"greaterThan": 50}},
    {"value": {"equals": None}},
]


def without_ts(entries: list[Any]) -> list[Any]:
    assert all(entry["ts"].endswith("Z") for entry in entries)
    return [{name: value for name, value in entry.items() if name != "ts"} for entry in entries]


def test_as_of_is_what_a_get_gave(directory: Path) -> None:
    """Whatever happened, also over a stop and a kill: get with asOf gives what a get gave at that instant."""
    seen: list[tuple[int, list[Any]]] = []
    options = ("--journal", str(directory), "--journal-flush-ms", "20")
    for life in range(3):
        daemon = Daemon.start(*options)
        doings = Doings(daemon, random.Random(life))
        for _ in range(40):
            doings.do()
        seen += doings.seen
        doings.witness.result("call", {"path": "$jet/journal/offsets"})
        if life == 1:
            daemon.process.send_signal(signal.SIGKILL)
            daemon.process.wait()
        else:
            daemon.stop()
        doings.close()
        seen.append((instant(), seen[-1][1] if life == 1 else []))  # killed: nobody has said that they are gone
    assert len({json.dumps(entries) for _, entries in seen}) > 30
    with Daemon.start(*options) as daemon, daemon.connect() as wire:
        for then, entries in seen:
            assert without_ts(wire.result("get", {"asOf": then})) == entries
        for rule in RULES[1:]:
            for then, _ in seen[::5]:
                everything = without_ts(wire.result("get", {"asOf": then}))
                found = without_ts(wire.result("get", {"asOf": then, **rule}))
                assert found == [entry for entry in everything if matches(rule, entry)]
        assert wire.result("get", {"asOf": "now"}) == []
        assert wire.result("get", {"asOf": "1999-01-01"}) == []


def matches(rule: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Return True if a rule of the table is about an entry."""
    path, value = entry["path"], entry.get("value", ...)
    tests: dict[str, Callable[[Any, Any], bool]] = {
        "startsWith": lambda _value, operand: path.startswith(operand),
        "contains": lambda _value, operand: operand in path,
        "greaterThan": lambda value, operand: type(value) is int and value > operand,
    }
    for what in ("path", "value"):
        for operator, operand in rule.get(what, {}).items():
            if operator == "equals":
                fits = (path if what == "path" else value) == operand
            else:
                fits = tests[operator](value, operand)
            if not fits:
                return False
    return True


class BinaryWire:
    """A connection that speaks binary, frame by frame."""

    def __init__(self, daemon: Daemon) -> None:
        host, port = daemon.listens["binary"].split(":")
        self._socket = socket.create_connection((host, int(port)), DEADLINE_S)
        self._stream = self._socket.makefile("rb")
        assert self.receive()[0] == binary.INFO

    def ask(self, function: int, starts_with: str, options: dict[str, Any]) -> None:
        message = bytes((binary.REQUEST, 1, 0, 0, 0, function)) + binary.encode_key(starts_with)
        message += binary.encode_json_body(json.dumps(options).encode())
        self._socket.sendall(len(message).to_bytes(4, "little") + message)

    def receive(self) -> bytes:
        return self._stream.read(int.from_bytes(self._stream.read(4), "little"))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def read_told(frame: bytes, at: int) -> tuple[str, int]:
    """Return the events of a message with their paths, and the position after them."""
    path, body_at = binary.read_key(frame, at)
    body, end = binary.read_body(frame, body_at)
    return f"{path} {binary.to_json(body).decode()}", end


def test_instants_in_binary(daemon: Daemon, directory: Path) -> None:
    """An event of the past ends with its instant, a get of the past with those of its entries; the present has none."""
    with daemon.connect() as owner:
        owner.result("add", {"path": "a", "value": 1})
        owner.result("add", {"path": "b", "value": 1})
        owner.result("change", {"path": "a", "value": 2})
        owner.result("call", {"path": "$jet/journal/offsets"})
        recorded = journal.open(directory).table("**", events=["add", "change"]).to_pylist()
        begin, end = recorded[0]["ts"].isoformat(), recorded[-1]["ts"].isoformat()
        instants = [row["ts"].isoformat().replace("+00:00", "Z") for row in recorded]
        instants = [text if "." in text else text.replace("Z", ".000000Z") for text in instants]
        with closing(BinaryWire(daemon)) as wire:
            wire.ask(binary.FETCH_STATES, "", {"since": begin})
            assert wire.receive()[:6] == bytes((binary.RESPONSE, 1, 0, 0, 0, 0))
            received = []
            for _ in recorded:
                frame = wire.receive()
                text, at = read_told(frame, 6)
                instant, at = binary.read_instant(frame, at)
                assert at == len(frame)
                received.append((binary.KINDS[frame[1]], text, instant))
            assert received == [
                ("add", "a 1", instants[0]),
                ("add", "b 1", instants[1]),
                ("change", "a 2", instants[2]),
            ]
            owner.notify("change", {"path": "b", "value": 3})
            frame = wire.receive()
            assert read_told(frame, 6) == ("b 3", len(frame)), "an event of the present has no instant"
        with closing(BinaryWire(daemon)) as wire:
            wire.ask(binary.GET, "", {"asOf": end})
            frame = wire.receive()
            count, at = binary.read_number(frame, 6)
            found = []
            for _ in range(count):
                text, at = read_told(frame, at + 1)
                found.append(text)
            assert found == ["a 2", "b 1"]
            for instant in (instants[2], instants[1]):
                text, at = binary.read_instant(frame, at)
                assert text == instant
            assert at == len(frame)


def test_get_sees_what_was_just_acknowledged(daemon: Daemon) -> None:
    """A change acknowledged before an instant is in the tree of that instant, though no flush has been due."""
    with daemon.connect() as wire, daemon.connect() as other:
        wire.result("add", {"path": "a", "value": 0})
        for number in range(1, 101):
            wire.result("change", {"path": "a", "value": number})
            (entry,) = other.result("get", {"asOf": instant()})
            assert entry["value"] == number


# -- fetch with since


class Owner:
    """An owner whose one state counts up as fast as it can, or with pauses, in a thread of its own."""

    def __init__(self, daemon: Daemon, *, first: int = 0, pause_s: float = 0.0) -> None:
        self.path = "fast/x"
        self._pause_s = pause_s
        self.value = first
        self._wire = daemon.connect()
        self._wire.result("add", {"path": self.path, "value": self.received()})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def received(self) -> Any:
        return {"n": self.value, "v": self.value % 10}

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self.change(50)

    def change(self, count: int) -> None:
        for _ in range(count):
            self.value += 1
            self._wire.notify("change", {"path": self.path, "value": self.received()})
        self._wire.barrier()

    def finish(self) -> int:
        """Stop changing; gives the last value."""
        self._stop.set()
        self._thread.join(DEADLINE_S)
        return self.value

    def close(self) -> None:
        self._wire.close()


FetchEvent = tuple[str, int]
"""What a fetch was told: kind and number."""


def params_of(rule: dict[str, Any]) -> dict[str, Any]:
    return {"path": {"startsWith": "fast/"}, "every": True, **rule}


class RawFetch:
    """A fetch by JSON, as given."""

    def __init__(self, daemon: Daemon, since: int, rule: dict[str, Any], *, fetch_id: Any, node_jet_3: bool) -> None:
        self._wire = daemon.connect()
        if node_jet_3:
            self._wire.result("info", {})
        self._id = fetch_id
        assert self._wire.result("fetch", {"id": fetch_id, "since": since, **params_of(rule)}) is True

    def next(self) -> FetchEvent:
        message = self._wire.receive()
        assert message["method"] == self._id
        params = message["params"]
        return params["event"].lower(), params["value"]["n"]

    def close(self) -> None:
        self._wire.close()


class PeerFetch:
    """A fetch by a peer that speaks binary."""

    def __init__(self, daemon: Daemon, since: int, rule: dict[str, Any]) -> None:
        self._peer = jetbus.Peer(url_of(daemon, "binary"))
        self._peer.connect()
        fields = {"v": jetbus.above(rule["valueField"]["v"]["greaterThan"])} if rule else None
        self._fetch = self._peer.fetch(starts_with="fast/", since=since, fields=fields)

    def next(self) -> FetchEvent:
        event = self._fetch.next(DEADLINE_S)
        return event.kind, event.value["n"]

    def close(self) -> None:
        self._peer.close()


FETCHERS: dict[str, Callable[[Daemon, int, dict[str, Any]], RawFetch | PeerFetch]] = {
    "classic": lambda *args: RawFetch(*args, fetch_id="f", node_jet_3=False),
    "classic, numeric id": lambda *args: RawFetch(*args, fetch_id=7, node_jet_3=False),
    "node-jet 3": lambda *args: RawFetch(*args, fetch_id="f", node_jet_3=True),
    "binary": PeerFetch,
}
VALUE_RULES: dict[str, dict[str, Any]] = {"all": {}, "value rule": {"valueField": {"v": {"greaterThan": 4}}}}


def model(rule: dict[str, Any], first: int, last: int) -> list[FetchEvent]:
    """Return the events of a fetch from the very beginning of a state that counts up."""
    received: list[FetchEvent] = []
    known = False
    for number in range(first, last + 1):
        fits = not rule or number % 10 > 4
        if fits:
            received.append(("change" if known else "add", number))
        elif known:
            received.append(("remove", number))
        known = fits
    return received


def read_to_the_end(fetch: RawFetch | PeerFetch, last: FetchEvent) -> list[FetchEvent]:
    received = [fetch.next()]
    while received[-1] != last:
        received.append(fetch.next())
    return received


@pytest.fixture(scope="module")
def generous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that lets a fetch replay as much as it likes."""
    options = ("--replay-events-max", "1000000", "--outbox-hard-bytes", "1000000000")
    with Daemon.start("--journal", str(tmp_path_factory.mktemp("journal")), *options) as daemon:
        yield daemon


@pytest.mark.parametrize("rule", VALUE_RULES.values(), ids=VALUE_RULES)
@pytest.mark.parametrize("fetcher", FETCHERS.values(), ids=FETCHERS)
def test_since_at_full_speed(
    fetcher: Callable[[Daemon, int, dict[str, Any]], RawFetch | PeerFetch], rule: dict[str, Any], generous: Daemon
) -> None:
    """A fetch that begins in the past while its state changes at full speed misses nothing and tells nothing twice."""
    daemon = generous
    daemon.await_empty()
    owner = Owner(daemon)
    owner.change(2500)
    owner.start()
    marks: list[tuple[int, int, int]] = []
    fetches = []
    for _ in range(3):
        done = owner.value - 50  # what was sent before that is answered
        then = instant()
        marks.append((then, done, owner.value))
        mark = marks[random.randrange(len(marks))]
        fetches.append((mark, fetcher(daemon, mark[0], rule)))
    reached = owner.finish()
    # One round more, so that the last event is one that every fetch is told of.
    owner.change(9 - reached % 10)
    whole = model(rule, 0, owner.value)
    for (_, done, sent), fetch in fetches:
        received = read_to_the_end(fetch, whole[-1])
        expected = whole[-len(received) :]
        assert received[1:] == expected[1:]
        assert received[0] in (expected[0], ("add", expected[0][1]))
        if rule:
            assert done - 10 <= received[0][1] <= sent + 10
        else:
            assert received[0][0] == "add"
            assert done <= received[0][1] <= sent
        fetch.close()
    owner.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_since_over_a_restart(end: str, directory: Path) -> None:
    """A fetch that begins before a restart is told what was, that it went, and what came after."""
    options = ("--journal", str(directory))
    daemon = Daemon.start(*options)
    owner = Owner(daemon)
    owner.change(10)
    then = instant()
    owner.change(10)
    with daemon.connect() as wire:
        wire.result("call", {"path": "$jet/journal/offsets"})
    if end == "kill":
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    else:
        daemon.stop()
    owner.close()
    with Daemon.start(*options) as daemon:
        owner = Owner(daemon, first=100)
        owner.start()
        fetches = {name: fetcher(daemon, then, {}) for name, fetcher in FETCHERS.items()}
        last = owner.finish()
        end_of_it = ("change", last) if last > 100 else ("add", 100)
        received = {name: read_to_the_end(fetch, end_of_it) for name, fetch in fetches.items()}
        for fetch in fetches.values():
            fetch.close()
        owner.close()
    first = [("add", 10), *[("change", number) for number in range(11, 21)], ("remove", 20)]
    wanted = [*first, ("add", 100), *[("change", number) for number in range(101, last + 1)]]
    assert received == dict.fromkeys(FETCHERS, wanted)


def test_since_with_adds_and_removes(daemon: Daemon) -> None:
    """States and methods that came and went are told as they came and went, with their instants."""
    with daemon.connect() as owner, daemon.connect() as fetcher:
        owner.result("add", {"path": "a", "value": 1, "fetchOnly": True})
        then = instant()
        owner.result("add", {"path": "m"})
        owner.result("change", {"path": "a", "value": 2})
        owner.result("remove", {"path": "a"})
        owner.result("add", {"path": "a", "value": 3})
        owner.result("remove", {"path": "m"})
        assert fetcher.result("fetch", {"id": "f", "since": then}) is True
        received = [message["params"] for message in fetcher.receive_all()]
        ts = [params.pop("ts") for params in received]
        assert received == [
            {"path": "a", "event": "add", "value": 1, "fetchOnly": True},
            {"path": "m", "event": "add"},
            {"path": "a", "event": "change", "value": 2},
            {"path": "a", "event": "remove", "value": 2},
            {"path": "a", "event": "add", "value": 3},
            {"path": "m", "event": "remove"},
        ]
        us = [journal.read_instant(text) for text in ts]
        assert us == sorted(us)
        assert us[0] < then < us[1]
        owner.result("change", {"path": "a", "value": 4})
        assert fetcher.receive() == {"method": "f", "params": {"path": "a", "event": "change", "value": 4}}


def test_node_jet_3_is_told_of_states_only(daemon: Daemon) -> None:
    """A dialect that knows no methods in fetches is told of none in the past."""
    with daemon.connect() as owner, daemon.connect() as fetcher:
        fetcher.result("info", {})
        then = instant()
        owner.result("add", {"path": "m"})
        owner.result("add", {"path": "a", "value": 1})
        owner.result("remove", {"path": "m"})
        fetcher.result("fetch", {"id": "f", "since": then})
        received = [(message["params"]["event"], message["params"]["path"]) for message in fetcher.receive_all()]
        assert received == [("Add", "a")]


@pytest.mark.parametrize("density", ["sample 1h", "skip"])
def test_since_with_paths_that_are_not_fully_recorded(density: str, start_daemon: StartDaemon, directory: Path) -> None:
    """Events that the journal lacks are made up for at the seam: a fetch always ends in the present."""
    daemon = start_daemon("--journal", str(directory), "--journal-rules", f"fast/** => {density}")
    owner = Owner(daemon)
    then = instant()
    owner.change(20)
    fetch = FETCHERS["classic"](daemon, then, {})
    owner.change(3)
    received = read_to_the_end(fetch, ("change", 23))
    live = [("change", 21), ("change", 22), ("change", 23)]
    seam = {"sample 1h": [("add", 0), ("change", 20)], "skip": [("add", 20)]}
    assert received == [*seam[density], *live]
    fetch.close()
    owner.close()


def test_replay_events_max(start_daemon: StartDaemon, directory: Path) -> None:
    """More of the past than the limit is refused with an error that says so; less of it can be had."""
    daemon = start_daemon("--journal", str(directory), "--replay-events-max", "50")
    owner = Owner(daemon)
    early = instant()
    owner.change(60)
    late = instant()
    owner.change(40)
    with daemon.connect() as wire:
        error = wire.error("fetch", {"id": "f", "since": early})
        assert error["code"] == -32603
        assert error["data"]["reason"] == "replay_events_max reached"
        assert "begin later" in error["data"]["message"]
        assert daemon.limit_hits("replay_events_max") == 1
        assert wire.result("fetch", {"id": "f", "since": late}) is True
        numbers = [message["params"]["value"]["n"] for message in wire.receive_all()]
        assert numbers == list(range(60, 101))
        assert wire.result("fetch", {"id": "other", "path": {"equals": "elsewhere"}, "since": early}) is True
    owner.close()


@pytest.mark.parametrize(("service", "when"), [("get", "asOf"), ("fetch", "since")], ids=["get", "fetch"])
def test_past_bytes_max(service: str, when: str, start_daemon: StartDaemon, directory: Path) -> None:
    """A tree of the past that is too large is refused with an error that says so; a part of it can be had."""
    daemon = start_daemon("--journal", str(directory), "--past-bytes-max", "10000")
    with daemon.connect() as owner, daemon.connect() as wire:
        owner.result("add", {"path": "long", "value": "x" * 20_000})
        owner.result("add", {"path": "short", "value": 1})
        error = wire.error(service, {"id": "f", when: instant()})
        assert error["data"]["reason"] == "past_bytes_max reached"
        assert "narrow the rule" in error["data"]["message"]
        assert daemon.limit_hits("past_bytes_max") == 1
        assert wire.result(service, {"id": "f", when: instant(), "path": {"equals": "short"}})


def test_messages_wait_for_the_past(daemon: Daemon) -> None:
    """Messages behind a fetch of the past are handled after it."""
    owner = Owner(daemon)
    then = instant()
    owner.change(100)
    with daemon.connect() as wire:
        wire.send({"id": 1, "method": "fetch", "params": {"id": "f", "since": then}})
        wire.send({"id": 2, "method": "add", "params": {"path": "late", "value": 0}})
        wire.send({"id": 3, "method": "get", "params": {"asOf": then}})
        wire.send({"id": 4, "method": "unfetch", "params": {"id": "f"}})
        received = wire.receive_all()
    assert received[0] == {"id": 1, "result": True}
    assert [message["params"]["value"]["n"] for message in received[1:102]] == list(range(101))
    assert received[102]["params"]["path"] == "late"
    assert [message["id"] for message in received[103:]] == [2, 3, 4]
    assert received[104]["result"][0]["value"]["n"] == 0
    owner.close()


def test_fetchers_that_do_not_wait(daemon: Daemon) -> None:
    """A peer that goes while its past is read leaves nothing behind."""
    owner = Owner(daemon)
    then = instant()
    owner.change(2000)
    for _ in range(20):
        wire = daemon.connect()
        wire.send({"id": 1, "method": "fetch", "params": {"id": "f", "since": then}})
        wire.send({"id": 2, "method": "get", "params": {"asOf": then}})
        wire.close()
    deadline = time.monotonic() + DEADLINE_S
    with daemon.connect() as witness:
        while daemon.metrics()["jetbus_connections"] > 3:
            assert time.monotonic() < deadline
        fetch = FETCHERS["classic"](daemon, then, {})  # behind all of them
        assert read_to_the_end(fetch, ("change", 2000))[0] == ("add", 0)
        fetch.close()
        while daemon.metrics()["jetbus_fetches"]:
            assert time.monotonic() < deadline
        assert daemon.metrics()["jetbus_audiences"] == 0
        witness.barrier()
    owner.close()


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_many_look_back_at_once(fsync: str, start_daemon: StartDaemon, directory: Path) -> None:
    """Many peers look back in every way, while states change and segments are sealed; all are told the truth."""
    options = ("--journal-fsync", fsync, "--journal-segment-mb", "1", "--replay-events-max", "1000000")
    daemon = start_daemon("--journal", str(directory), *options)
    owner = Owner(daemon, pause_s=0.02)
    with daemon.connect() as wire:
        wire.result("add", {"path": "big", "value": ""})
        for _ in range(40):
            wire.notify("change", {"path": "big", "value": random.randbytes(60_000).hex()})
        wire.result("call", {"path": "$jet/journal/offsets"})
        owner.start()
        problems: list[BaseException] = []

        def look_back() -> None:
            try:
                with jetbus.Peer(url_of(daemon, random.choice(PROTOCOLS))) as peer:
                    for _ in range(3):
                        look_once(peer)
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=look_back) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        owner.finish()
    assert problems == []
    assert len(list(directory.glob("*.arrows"))) > 1
    owner.close()


def look_once(peer: jetbus.Peer) -> None:
    """Look back in every way at what an owner does meanwhile."""
    last = peer.call("$jet/journal/offsets")["last"]
    table, _ = read_page(peer.call("$jet/journal/range", seq=max(1, last - 100), seqUntil=last + 1, columns=["seq"]))
    assert table["seq"].to_pylist() == list(range(max(1, last - 100), last + 1))
    (row,) = read_page(peer.call("$jet/journal/as_of", seq=last, rule="fast/x"))[0].to_pylist()
    then = instant()
    found = peer.get_all("fast/x", as_of=then)["fast/x"]["n"]
    assert found >= json.loads(row["value"])["n"]
    values = read_page(peer.call("$jet/journal/history", path="fast/x", until=then + 1))[0]["value"].to_pylist()
    assert json.loads(values[-1])["n"] == found or len(values) == 20_000
    with peer.fetch("fast/x", since=then) as fetch:
        received = [fetch.next(DEADLINE_S).value["n"] for _ in range(3)]
    assert received == [found, found + 1, found + 2]


def test_now_is_by_the_journals_clock(start_daemon: StartDaemon, directory: Path) -> None:
    """On a machine whose clock went back by an hour, asOf now is the tree of now, and since -1m the last minute."""
    with journal.Writer(directory, now_us=lambda: time.time_ns() // 1000 + 3_600_000_000) as writer:
        writer.append("start")
    daemon = start_daemon("--journal", str(directory))
    with daemon.connect() as wire:
        assert wire.result("add", {"path": "a", "value": 1}) is True
        assert wire.result("get", {"asOf": "now"})[0]["value"] == 1
        assert wire.result("fetch", {"id": "f", "since": "-1m"}) is True
        assert wire.receive()["params"]["value"] == 1


def test_two_pasts_and_the_present(daemon: Daemon) -> None:
    """Fetches of one peer from different instants each tell their own past and the same present."""
    owner = Owner(daemon)
    instants = []
    for _ in range(3):
        instants.append(instant())
        owner.change(5)
    with daemon.connect() as wire:
        for number, then in enumerate(instants):
            wire.result("fetch", {"id": f"f{number}", "since": then})
        wire.result("fetch", {"id": "now"})
        owner.change(2)
        received: dict[str, list[int]] = {}
        for message in wire.receive_all():
            received.setdefault(message["method"], []).append(message["params"]["value"]["n"])
    assert received == {
        "f0": list(range(18)),
        "f1": list(range(5, 18)),
        "f2": list(range(10, 18)),
        "now": [15, 16, 17],
    }
    assert all(after > before for before, after in pairwise(instants))
    owner.close()


def test_a_refusal_is_a_refusal_of_parameters(peer: jetbus.Peer) -> None:
    """Errors of the daemon's methods are reported as invalid parameters."""
    with pytest.raises(jetbus.Invalid, match="is not an instant") as refused:
        peer.call("$jet/journal/as_of", instant="tomorrow")
    assert type(refused.value) is jetbus.Invalid


# -- descriptions, source times and qualities


def test_the_journal_keeps_what_owners_say(daemon: Daemon, directory: Path) -> None:
    """Schemas, source times and qualities are recorded, and told by gets and fetches of the past that ask for them."""
    with daemon.connect() as owner, daemon.connect() as asker:

        def change(**params: Any) -> None:
            owner.send({"method": "change", "params": {"path": "pump", **params}})

        owner.send(
            {"method": "add", "params": {"path": "pump", "value": 1, "schema": {"unit": "rpm"}, "ts": 5_000_000}}
        )
        change(value=2, quality={"level": "bad", "reason": "cable"})
        owner.barrier()
        then = instant()
        change(schema={"unit": "Hz"})
        change(value=3, ts=9_000_000, quality="uncertain")
        change(value=2.5, ts=7_000_000, past=True)
        owner.barrier()

        def get(**params: Any) -> Any:
            asker.send({"id": 1, "method": "get", "params": params})
            return asker.receive()["result"]

        (plain,) = get(asOf=then)
        assert (set(plain), plain["value"]) == ({"path", "event", "value", "ts"}, 2)
        (received,) = get(asOf=then, schema=True, meta=True)
        assert (received["schema"], received["quality"]) == ({"unit": "rpm"}, {"level": "bad", "reason": "cable"})
        (now,) = get(asOf="now", schema=True, meta=True)
        assert (now["value"], now["schema"], now["quality"]) == (3, {"unit": "Hz"}, "uncertain")
        assert now["ts"] == "1970-01-01T00:00:09.000000Z"
        asker.send({"id": 2, "method": "fetch", "params": {"id": "f", "since": then, "schema": True, "meta": True}})
        events = [message["params"] for message in asker.receive_all() if message.get("method") == "f"]
        assert [(event["event"], event["value"], event.get("quality")) for event in events] == [
            ("add", 2, {"level": "bad", "reason": "cable"}),
            ("change", 3, "uncertain"),
        ]
        asker.send({"id": 3, "method": "fetch", "params": {"id": "g", "since": then}})
        events = [message["params"] for message in asker.receive_all() if message.get("method") == "g"]
        assert [set(event) for event in events] == [{"path", "event", "value", "ts"}] * 2
        log = journal.open(directory)
        rows = log.table("pump", columns=["event", "value", "source_ts", "quality"]).to_pylist()
        assert [
            (row["event"], row["value"], row["source_ts"] and row["source_ts"].second, row["quality"]) for row in rows
        ] == [
            ("add", "1", 5, None),
            ("change", "2", None, '{"level":"bad","reason":"cable"}'),
            ("describe", None, None, None),
            ("change", "3", 9, "uncertain"),
            ("past", "2.5", 7, None),
        ]
        history = log.history("pump").to_pylist()
        assert [row["value"] for row in history] == ["1", "2", "2.5", "3"]
        assert [row["late"] for row in history] == [False, False, True, False]
        assert [row["unit"] for row in history if not row["late"]] == ["rpm", "rpm", "Hz"]
