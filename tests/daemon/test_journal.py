"""Events recorded by a daemon with --journal, and its behaviour if it cannot write."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jetbus
from jetbus import journal
from support.daemon import COMMAND, Daemon
from support.wire import DEADLINE_S, Wire

StartDaemon = Callable[..., Daemon]
TREE = ["add", "change", "remove"]
NOWHERE = ("--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def daemon(start_daemon: StartDaemon, directory: Path) -> Daemon:
    """A daemon that keeps a journal."""
    return start_daemon("--journal", str(directory))


def committed(daemon: Daemon, directory: Path, **wanted: Any) -> list[dict[str, Any]]:
    """Return all events recorded so far."""
    with daemon.connect() as wire:
        wire.result("call", {"path": "$jet/journal/offsets"})
    found: list[dict[str, Any]] = journal.open(directory).table(**wanted).to_pylist()
    return found


def detail_of(event: dict[str, Any]) -> dict[str, Any]:
    detail = json.loads(event["detail"])
    assert isinstance(detail, dict)
    return detail


def until(true: Callable[[], Any]) -> None:
    """Wait until something is true, by asking again and again."""
    deadline = time.monotonic() + 3 * DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, "it does not become true"


def url_of(daemon: Daemon, protocol: str) -> str:
    return {"JSON": f"jet://{daemon.listens['tcp']}", "binary": f"jetb://{daemon.listens['binary']}"}[protocol]


def test_time_passes_for_readers_of_the_files(directory: Path) -> None:
    """Readers of the files of a quiet bus see time go on; after the daemon's end it stands still at its stop."""

    def offsets() -> dict[str, Any]:
        (found,) = journal.open(directory).offsets().values()
        return dict(found)

    with Daemon.start("--journal", str(directory)) as daemon, daemon.connect() as wire:
        wire.result("add", {"path": "quiet", "value": 1})
        wire.result("call", {"path": "$jet/journal/offsets"})
        added = offsets()
        until(lambda: offsets()["now"] > added["last_ts"])
        first = offsets()
        until(lambda: offsets()["now"] > first["now"])
        assert offsets()["last"] == added["last"]
    stopped = offsets()
    assert stopped["now"] == stopped["last_ts"] > first["now"]


# -- the tree


def live_classic(daemon: Daemon) -> None:
    with daemon.connect() as wire:
        wire.result("add", {"path": "d/x", "value": 1})
        wire.result("add", {"path": "d/m"})
        wire.notify("change", {"path": "d/x", "value": 2})
        wire.result("change", {"path": "d/x", "value": {"rpm": 3.50}})
        wire.result("remove", {"path": "d/m"})
        wire.result("remove", {"path": "d/x"})


def live_cpp(daemon: Daemon) -> None:
    with daemon.connect() as wire:
        for method, params in (
            ("add", {"path": "d/x", "value": 1}),
            ("add", {"path": "d/m"}),
            ("change", {"path": "d/x", "value": 2}),
            ("change", {"path": "d/x", "value": {"rpm": 3.50}}),
            ("remove", {"path": "d/m"}),
            ("remove", {"path": "d/x"}),
        ):
            assert "result" in wire.request(method, params, jsonrpc="2.0")


def live_node_jet_3(daemon: Daemon) -> None:
    with daemon.connect("ws") as wire:
        wire.result("info", {})  # with a text as id and as the first message: that is how it is recognised
        (peer,) = wire.result("get", {"path": {"equals": "$jet/peers/1"}})
        assert peer["value"]["dialect"] == "node-jet 3"
        wire.result("add", {"path": "d/x", "value": 1})
        wire.result("add", {"path": "d/m"})
        wire.notify("change", {"path": "d/x", "value": 2})
        wire.result("change", {"path": "d/x", "value": {"rpm": 3.50}})
        wire.result("remove", {"path": "d/m"})
        wire.result("remove", {"path": "d/x"})


def live_batched(daemon: Daemon) -> None:
    with daemon.connect("unix") as wire:
        wire.send(
            [
                {"method": "add", "params": {"path": "d/x", "value": 1}},
                {"method": "add", "params": {"path": "d/m"}},
                {"method": "change", "params": {"path": "d/x", "value": 2}},
                {"method": "change", "params": {"path": "d/x", "value": {"rpm": 3.50}}},
                {"method": "remove", "params": {"path": "d/m"}},
                {"method": "remove", "params": {"path": "d/x"}},
            ]
        )
        wire.barrier()


def live_legacy(daemon: Daemon) -> None:
    with daemon.connect() as wire:
        wire.result("add", {"path": "d/x", "element": {"type": "state", "value": 1}})
        wire.result("add", {"path": "d/m", "element": {"type": "method"}})
        wire.result("notify", {"path": "d/x", "event": "change", "data": {"value": 2}})
        wire.result("post", {"path": "d/x", "event": "change", "data": {"value": {"rpm": 3.50}}})
        wire.result("remove", {"path": "d/m"})
        wire.result("remove", {"path": "d/x"})


def live_positional(daemon: Daemon) -> None:
    with daemon.connect() as wire:
        wire.result("add", ["d/x", {"type": "state", "value": 1}])
        wire.result("add", ["d/m", {"type": "method"}])
        wire.result("change", ["d/x", 2])
        wire.result("change", ["d/x", {"rpm": 3.50}])
        wire.result("remove", ["d/m"])
        wire.result("remove", ["d/x"])


def live_binary(daemon: Daemon) -> None:
    with jetbus.Peer(url_of(daemon, "binary")) as peer:
        state = peer.add_state("d/x", 1)
        method = peer.add_method("d/m", print)
        state.change(2)
        state.change({"rpm": 3.50})
        method.remove()
        state.remove()


def live_and_go(daemon: Daemon) -> None:
    with daemon.connect() as wire:
        wire.result("add", {"path": "d/m"})
        wire.result("add", {"path": "d/x", "value": 1})
        wire.notify("change", {"path": "d/x", "value": 2})
        wire.result("change", {"path": "d/x", "value": {"rpm": 3.50}})
    daemon.await_empty()


LIVES = {
    "classic": live_classic,
    "C++": live_cpp,
    "node-jet 3": live_node_jet_3,
    "a batch": live_batched,
    "legacy": live_legacy,
    "legacy, positional": live_positional,
    "binary": live_binary,
    "owner goes": live_and_go,
}


@pytest.mark.parametrize("live", LIVES.values(), ids=LIVES)
def test_the_tree_is_recorded(live: Callable[[Daemon], None], daemon: Daemon, directory: Path) -> None:
    """Every add, change and remove of every dialect is recorded with kind, value and owner."""
    live(daemon)
    events = committed(daemon, directory, rule="d/**")
    assert {event["peer"].startswith("#") for event in events} == {True}
    assert len({event["peer"] for event in events}) == 1
    received = {(event["event"], event["kind"], event["path"], event["value"]) for event in events}
    assert received == {
        ("add", "state", "d/x", "1"),
        ("add", "method", "d/m", None),
        ("change", "state", "d/x", "2"),
        ("change", "state", "d/x", '{"rpm":3.5}'),
        ("remove", "method", "d/m", None),
        ("remove", "state", "d/x", '{"rpm":3.5}'),
    }
    assert len(events) == 6
    assert [event["event"] for event in events if event["path"] == "d/x"] == ["add", "change", "change", "remove"]


DETAILS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "plain": ({}, None),
    "fetch only": ({"fetchOnly": True}, {"fetchOnly": True}),
    "timeout": ({"timeout": 2.5}, {"timeout": 2.5}),
    "access": (
        {"access": {"fetchGroups": ["b", "a"], "setGroups": []}},
        {"access": {"fetchGroups": ["a", "b"], "setGroups": []}},
    ),
}


@pytest.mark.parametrize(("given", "recorded"), DETAILS.values(), ids=DETAILS)
def test_what_an_owner_says_is_recorded(
    given: dict[str, Any], recorded: dict[str, Any] | None, daemon: Daemon, directory: Path
) -> None:
    """The detail of an add has what its owner said beside path and value."""
    with daemon.connect() as wire:
        wire.result("add", {"path": "d/x", "value": 1, **given})
        (event,) = committed(daemon, directory, rule="d/x", events=["add"])
    assert (None if event["detail"] is None else detail_of(event)) == recorded


def test_bytes_are_recorded(daemon: Daemon, directory: Path) -> None:
    """A value that is no JSON is recorded as JSON peers see it, and its add has the type."""
    with jetbus.Peer(url_of(daemon, "binary")) as peer:
        state = peer.add_state("d/image", jetbus.Blob(b"\x89PNG", mime="image/png"))
        state.change(jetbus.Blob(b"\0\1", mime="x/y"))
        peer.info()
        add, change = committed(daemon, directory, rule="d/image")
    assert detail_of(add)["type"] == "image/png"
    assert json.loads(add["value"]) == {"mime": "image/png", "base64": "iVBORw=="}
    assert json.loads(change["value"]) == {"mime": "x/y", "base64": "AAE="}


def test_refused_changes_are_not_recorded(daemon: Daemon, directory: Path) -> None:
    """Refused changes are not recorded."""
    with daemon.connect() as owner, daemon.connect() as other:
        owner.result("add", {"path": "d/x", "value": 1})
        other.error("change", {"path": "d/x", "value": 2})
        other.error("remove", {"path": "d/x"})
        other.error("add", {"path": "d/x", "value": 3})
        other.error("set", {"path": "d/nothing", "value": 3})
        assert [event["event"] for event in committed(daemon, directory, rule="d/**")] == ["add"]


def test_the_daemons_own_states_are_not_recorded(daemon: Daemon, directory: Path) -> None:
    """Nothing below $jet/ is recorded, though somebody fetches it and calls its methods."""
    with daemon.connect() as wire:
        wire.result("fetch", {"id": "self", "path": {"startsWith": "$jet/"}})
        wire.result("call", {"path": "$jet/journal/offsets"})
        paths = {event["path"] for event in committed(daemon, directory)}
    assert paths == {None}


# -- set and call


@pytest.mark.parametrize("owning", ["JSON", "binary"])
@pytest.mark.parametrize("asking", ["JSON", "binary"])
def test_requests_are_recorded(owning: str, asking: str, daemon: Daemon, directory: Path) -> None:
    """Set and call are recorded with what was asked, by whom, how it ended and how long it took."""

    def check(value: int) -> None:
        if value < 0:
            raise jetbus.Refused("not below 0", {"min": 0}, code=1001)

    with (
        jetbus.Peer(url_of(daemon, owning), name="owner") as owner,
        jetbus.Peer(url_of(daemon, asking), name="ann") as ann,
    ):
        owner.add_state("d/x", 1, on_set=check)
        owner.add_method("d/add", lambda a, b: a + b)
        ann.set("d/x", 7)
        with pytest.raises(jetbus.Refused):
            ann.set("d/x", -1)
        assert ann.call("d/add", 1, 2) == 3
        assert ann.call("d/add", a=1, b=2) == 3
        with pytest.raises(jetbus.JetError):
            ann.call("d/add", 1)
        events = committed(daemon, directory, events=["set", "call"])
    assert [(event["event"], event["kind"], event["path"]) for event in events] == [
        *[("set", "state", "d/x")] * 2,
        *[("call", "method", "d/add")] * 3,
    ]
    assert [json.loads(event["value"]) for event in events] == [7, -1, [1, 2], {"a": 1, "b": 2}, [1]]
    assert {event["peer"].partition("#")[0] for event in events} == {"ann"}
    details = [detail_of(event) for event in events]
    assert [detail["outcome"] for detail in details] == ["ok", "error", "ok", "ok", "error"]
    assert {detail["owner"].partition("#")[0] for detail in details} == {"owner"}
    assert all(detail["us"] >= 0 for detail in details)
    assert (details[1]["code"], details[1]["error"], details[1]["data"]) == (1001, "not below 0", {"min": 0})
    assert details[4]["code"] == -32602
    assert "code" not in details[0]


def ask(caller: Wire, owner: Wire, request_id: int, **extra: Any) -> Any:
    """Call d/m; gives what the owner is asked."""
    caller.send({"id": request_id, "method": "call", "params": {"path": "d/m", "args": [request_id], **extra}})
    return owner.receive()


INTRODUCED: dict[str, tuple[str, Any]] = {
    "classic": ("echo", {}),
    "node-jet 3": ("info", {}),
    "legacy, positional": ("add", ["legacy", {"type": "state", "value": 1}]),
}


@pytest.mark.parametrize("owning", INTRODUCED.values(), ids=INTRODUCED)
@pytest.mark.parametrize("asking", INTRODUCED.values(), ids=INTRODUCED)
def test_requests_of_all_dialects_are_recorded(
    owning: tuple[str, Any], asking: tuple[str, Any], daemon: Daemon, directory: Path
) -> None:
    """Whatever dialects requester and owner speak, a set and a call are recorded in the same way."""
    with daemon.connect() as owner, daemon.connect() as caller:
        owner.result(*owning)
        owner.result("add", {"path": "d/x", "value": 1})
        owner.result("add", {"path": "d/m"})
        if asking != owning or asking[0] != "add":
            caller.result(*asking)
        for number, (service, params) in enumerate(
            [("set", {"path": "d/x", "value": 2}), ("call", {"path": "d/m", "args": [3]})]
        ):
            caller.send({"id": number, "method": service, "params": params})
            request = owner.receive()
            answer = {"result": True} if service == "set" else {"error": {"code": 9, "message": "no"}}
            owner.send({"id": request["id"], **answer})
            assert caller.response(number)["id"] == number
        events = committed(daemon, directory, rule="d/*", events=["set", "call"])
    assert [(event["event"], event["kind"], event["path"], event["value"], event["peer"]) for event in events] == [
        ("set", "state", "d/x", "2", "#2"),
        ("call", "method", "d/m", "[3]", "#2"),
    ]
    done, refused = (detail_of(event) for event in events)
    assert (done["outcome"], done["owner"]) == ("ok", "#1")
    assert (refused["outcome"], refused["owner"], refused["code"], refused["error"]) == ("error", "#1", 9, "no")


def test_how_long_it_took(daemon: Daemon, directory: Path) -> None:
    """The duration is that from the request to the owner's answer."""
    with daemon.connect() as owner, daemon.connect() as caller:
        owner.result("add", {"path": "d/m"})
        request = ask(caller, owner, 1)
        time.sleep(0.05)
        owner.send({"id": request["id"], "result": 1})
        caller.response(1)
        (event,) = committed(daemon, directory, events=["call"])
    assert 50_000 <= detail_of(event)["us"] < 1_000_000 * DEADLINE_S


def test_unanswered_requests_are_recorded(daemon: Daemon, directory: Path) -> None:
    """A request that times out, one whose owner goes, and one that nobody waits for, are recorded as such."""
    with daemon.connect() as caller:
        with daemon.connect() as owner:
            owner.result("add", {"path": "d/m"})
            caller.result("config", {"name": "ann"})
            ask(caller, owner, 1, timeout=0.01)
            assert caller.response(1)["error"]["code"] == -32001
            caller.notify("call", {"path": "d/m", "args": [2]})
            owner.receive()
            ask(caller, owner, 3)
        assert caller.response(3)["error"]["code"] == -32603
        events = committed(daemon, directory, rule="d/**")
    assert [event["event"] for event in events] == ["add", "call", "call", "call", "remove"]
    late, sent, lost = (detail_of(event) for event in events[1:4])
    assert (late["outcome"], late["code"], late["error"]) == ("error", -32001, "Response Timeout")
    assert late["us"] >= 10_000
    assert sent["outcome"] == "sent"
    assert "us" not in sent
    assert (lost["outcome"], lost["code"], lost["data"]["reason"]) == ("error", -32603, "peer shuts down")
    assert {event["peer"] for event in events[1:4]} == {events[1]["peer"]}
    assert events[1]["peer"].startswith("ann#")


# -- peers, start and stop


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws", "binary"])
def test_peers_come_and_go(transport: str, daemon: Daemon, directory: Path) -> None:
    """A peer is recorded when it comes, with address and transport, and when it goes, with the name it gave itself."""
    if transport == "binary":
        with jetbus.Peer(url_of(daemon, "binary"), name="ann") as peer:
            peer.add_state("d/x", 1)
    else:
        with daemon.connect(transport) as wire:
            wire.result("config", {"name": "ann"})
            wire.result("add", {"path": "d/x", "value": 1})
    daemon.await_empty()
    events = committed(daemon, directory, seq=2)[:4]
    assert [event["event"] for event in events] == ["peer", "add", "gone", "remove"]
    assert [event["peer"] for event in events] == ["#1", "ann#1", "ann#1", "ann#1"]
    come = detail_of(events[0])
    assert come["transport"] == transport
    assert come["address"].startswith("127.0.0.1:") or transport == "unix"


def test_start_stop_restart(directory: Path) -> None:
    """Start, stop and restart are recorded, and the seq goes on over them."""
    options = ("--journal", str(directory), "--journal-bus", "plant")
    with Daemon.start(*options) as daemon, daemon.connect() as wire:
        wire.result("add", {"path": "d/x", "value": 1})
    with Daemon.start(*options):
        pass
    read = journal.open(directory)
    assert read.buses == ["plant"]
    events = read.table().to_pylist()
    assert [event["event"] for event in events] == [
        *("start", "peer", "add", "gone", "remove", "stop"),
        *("start", "stop"),
    ]
    assert [event["seq"] for event in events] == list(range(1, 9))
    starts = [detail_of(event) for event in events if event["event"] == "start"]
    assert starts == [
        {"version": jetbus.__version__, "restart": False},
        {"version": jetbus.__version__, "restart": True},
    ]
    assert journal.verify(directory) == []


def test_a_peer_that_stays_is_recorded_when_the_daemon_stops(directory: Path) -> None:
    """A daemon that stops records the going of its peers, and of what they own, before its own."""
    with Daemon.start("--journal", str(directory)) as daemon:
        wire = daemon.connect()
        wire.result("add", {"path": "d/x", "value": 1})
    wire.close()
    events = [event["event"] for event in journal.open(directory).table().to_pylist()]
    assert events == ["start", "peer", "add", "gone", "remove", "stop"]


# -- passwords

SECRET = "correct-horse-battery-staple"
OPEN = "a-value-that-may-be-read"


def test_passwords_are_never_recorded(directory: Path, tmp_path: Path) -> None:
    """No password that was sent, right or wrong, is anywhere in the journal's files."""
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"users": {"ann": {"password": f"{SECRET}-1", "admin": True}}}))
    with Daemon.start("--journal", str(directory), "--users", str(users)) as daemon:
        with daemon.connect() as wire, daemon.connect() as other:
            wire.result("authenticate", {"user": "ann", "password": f"{SECRET}-1"})
            wire.result("passwd", {"user": "ann", "password": f"{SECRET}-2"})
            wire.result("addUser", {"user": "bob", "password": f"{SECRET}-3"})
            other.error("authenticate", {"user": "ann", "password": f"{SECRET}-4"})
            other.error("passwd", {"user": "ann", "password": f"{SECRET}-5"})
            other.notify("authenticate", {"user": SECRET, "password": f"{SECRET}-6"})
            wire.result("add", {"path": "d/x", "value": OPEN})
        with jetbus.Peer(url_of(daemon, "binary"), user="bob", password=f"{SECRET}-3") as peer:
            peer.add_state("d/y", 1)
            peer.authenticate("ann", f"{SECRET}-2")
    files = [path for path in directory.rglob("*") if path.is_file()]
    tables = [pa.ipc.open_stream(path.read_bytes()).read_all() for path in files if path.suffix == ".arrows"]
    received = json.dumps([table.to_pylist() for table in tables], default=str)
    assert OPEN in received
    assert SECRET not in received
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


# -- how densely


def test_densities(directory: Path) -> None:
    """Rules say which paths are recorded and how densely; of samples the last value always arrives."""
    rules = "fast/** => sample 1h; secret/** => skip; ** => every"
    with Daemon.start("--journal", str(directory), "--journal-rules", rules) as daemon, daemon.connect() as wire:
        for path in ("fast/x", "fast/y", "secret/x", "slow/x"):
            wire.result("add", {"path": path, "value": 0})
        for number in range(1, 51):
            for path in ("fast/x", "secret/x", "slow/x"):
                wire.notify("change", {"path": path, "value": number})
        wire.result("remove", {"path": "fast/x"})
        wire.result("change", {"path": "fast/y", "value": 1})
    read = journal.open(directory)

    def received(path: str) -> list[tuple[str, str]]:
        rows = read.table(path, events=TREE).to_pylist()
        return [(row["event"], row["value"]) for row in rows]

    assert received("fast/x") == [("add", "0"), ("change", "50"), ("remove", "50")]
    assert received("fast/y") == [("add", "0"), ("change", "1"), ("remove", "1")]
    assert received("slow/x") == [
        ("add", "0"),
        *[("change", str(number)) for number in range(1, 51)],
        ("remove", "50"),
    ]
    assert received("secret/x") == []


@pytest.mark.parametrize("rules", ["** => every", "** => sample 1h", ""], ids=["every", "sample", "no rules"])
def test_unchanged_values(directory: Path, rules: str) -> None:
    """With journal_values = changed a value is recorded again only after another one, or after an add."""
    options = ["--journal", str(directory), "--journal-values", "changed"]
    with Daemon.start(*options, *(["--journal-rules", rules] if rules else [])) as daemon, daemon.connect() as wire:
        for _ in range(2):
            wire.result("add", {"path": "a", "value": 0})
            for value in (0, 0, 1, 1, 1, 2, 2):
                wire.result("change", {"path": "a", "value": value})
            wire.result("remove", {"path": "a"})
    rows = journal.open(directory).table("a", events=TREE).to_pylist()
    changes = ["2"] if "sample" in rules else ["1", "2"]
    assert [row["value"] for row in rows] == 2 * ["0", *changes, "2"]


def test_samples_come_in_their_interval(start_daemon: StartDaemon, directory: Path) -> None:
    """While a sampled state changes all the time, fewer values than changes are recorded, in order."""
    daemon = start_daemon("--journal", str(directory), "--journal-rules", "** => sample 20ms")
    read, sent = journal.open(directory), 0
    with daemon.connect() as wire:
        wire.result("add", {"path": "fast", "value": 0})

        def values() -> list[int]:
            return [int(text) for text in read.table("fast", events=["change"])["value"].to_pylist()]

        while len(values()) < 3:
            for _ in range(100):
                sent += 1
                wire.notify("change", {"path": "fast", "value": sent})
            wire.barrier()
        until(lambda: values()[-1] == sent)
        assert values() == sorted(set(values()))
        assert len(values()) < sent


# -- how much


def test_retention_by_size(start_daemon: StartDaemon, directory: Path) -> None:
    """Old segments go when there is too much; what is left is whole, and who asks for more is told where it begins."""
    daemon = start_daemon("--journal", str(directory), "--journal-segment-mb", "1", "--journal-keep-mb", "2")
    chance = random.Random(1)

    def offsets() -> dict[str, int]:
        found: dict[str, int] = wire.result("call", {"path": "$jet/journal/offsets"})
        return found

    def size() -> int:
        return sum(path.stat().st_size for path in directory.glob("*.arrows"))

    def seqs_there_are() -> list[int]:
        while True:
            with contextlib.suppress(journal.JournalGone):  # retention was faster than the reader
                return [event["seq"] for event in committed(daemon, directory, columns=["seq"])]

    with daemon.connect() as wire:
        wire.result("add", {"path": "stays", "value": "from the start"})
        wire.result("add", {"path": "big", "value": 0})
        for number in range(120):
            text = base64.b64encode(chance.randbytes(60_000)).decode()
            wire.notify("change", {"path": "big", "value": [number, text]})
            if number % 5 == 4:
                assert offsets()["last"] > number
        until(lambda: offsets()["first"] > 1 and size() < 4 << 20)
        error = wire.error("call", {"path": "$jet/journal/range", "args": {"seq": 1}})
        assert error["data"]["reason"] == "journalGone"
        assert re.search(r"the first event in the journal has seq \d+$", error["data"]["message"])
        assert str(directory) not in json.dumps(error), "where it keeps its journal is the daemon's own business"
        seqs = seqs_there_are()
        assert seqs == list(range(seqs[0], seqs[-1] + 1))
        assert 1 < seqs[0] < 122 < seqs[-1]
        tree = {entry["path"]: entry["value"] for entry in wire.result("get", {"asOf": "now"})}
        assert tree["stays"] == "from the start"
        assert tree["big"][0] == 119


def test_retention_by_age(start_daemon: StartDaemon, directory: Path) -> None:
    """Old segments go when their last event is old enough; what is on the bus since then is still known."""
    options = ("--journal-segment-s", "1", "--journal-keep-s", "1")
    daemon = start_daemon("--journal", str(directory), *options)
    with daemon.connect() as wire:
        wire.result("add", {"path": "stays", "value": "from the start"})
        wire.result("add", {"path": "x", "value": 0})

        def first() -> int:
            wire.notify("change", {"path": "x", "value": 1})
            return int(wire.result("call", {"path": "$jet/journal/offsets"})["first"])

        until(lambda: first() > 1)
        assert wire.error("call", {"path": "$jet/journal/range", "args": {"seq": 1}})["data"]["reason"] == "journalGone"
        tree = {entry["path"]: entry["value"] for entry in wire.result("get", {"asOf": "now"})}
        assert tree == {"stays": "from the start", "x": 1}
        assert journal.verify(directory) == []


def test_one_writer(daemon: Daemon, directory: Path) -> None:
    """A second daemon on the same directory does not start; it says who writes there and what to do."""
    ran = subprocess.run(
        [*COMMAND, "--tcp", "127.0.0.1:0", *NOWHERE, "--journal", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert f"{directory} is being written by process {daemon.process.pid}" in ran.stderr
    assert "choose another directory" in ran.stderr
    assert committed(daemon, directory)[0]["event"] == "start"


WRONG = {
    "no density": (["--journal-rules", "** => often"], "'often' is not a density; write every, skip or sample 1s"),
    "no arrow": (["--journal-rules", "**"], "journal_rules cannot be '**': it is RULE => DENSITY"),
    "by value": (["--journal-rules", "** value>1 => skip"], "cannot depend on its value"),
    "fsync": (["--journal-fsync", "sometimes"], "it is one of always, interval, never"),
    "segment": (["--journal-segment-s", "0"], "segment_age_s must be at least 1"),
    "a file": (["--journal", "/dev/null"], "cannot write to /dev/null"),
}


@pytest.mark.parametrize(("options", "says"), WRONG.values(), ids=WRONG)
def test_wrong_settings(options: list[str], says: str, directory: Path) -> None:
    """A journal that cannot be kept as asked for keeps the daemon from starting, with one sentence that says why."""
    ran = subprocess.run(
        [*COMMAND, "--tcp", "127.0.0.1:0", *NOWHERE, "--journal", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


# -- without pyarrow

WITHOUT_PYARROW = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
from jetbus.daemon.main import main
main(sys.argv[1:])
"""


@pytest.fixture
def without_pyarrow() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a daemon on a machine that has no pyarrow."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WITHOUT_PYARROW, "--tcp", "127.0.0.1:0", *NOWHERE, *options]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_journal_needs_pyarrow(without_pyarrow: Callable[..., subprocess.Popen[str]], directory: Path) -> None:
    """Without pyarrow, a daemon that is to keep a journal says what to install."""
    process = without_pyarrow("--journal", str(directory))
    out, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert len(error.splitlines()) == 1
    assert "pip install 'jetbus[history]'" in error


def test_a_daemon_without_journal_needs_no_pyarrow(without_pyarrow: Callable[..., subprocess.Popen[str]]) -> None:
    """Without pyarrow, a daemon that keeps no journal runs."""
    process = without_pyarrow()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready tcp=")
    process.terminate()
    assert process.wait(60) == 0


# -- when the disk refuses

FILE_BYTES = 100_000
BIG_BYTES = 200_000


def limit_files(daemon: Daemon, size_bytes: int) -> None:
    """From now on no file of the daemon may grow beyond this, as on a disk that is full."""
    _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


def stats_of(wire: Wire) -> dict[str, Any]:
    (entry,) = wire.result("get", {"path": {"equals": "$jet/journal/stats"}})
    stats: dict[str, Any] = entry["value"]
    return stats


def is_again(event: dict[str, Any]) -> bool:
    """Return True if an event repeats an existing element, because events were missed."""
    return event["event"] == "add" and "again" in json.loads(event["detail"] or "{}")


def present(wire: Wire) -> dict[str, Any]:
    return {entry["path"]: entry.get("value") for entry in wire.result("get", {})}


def recorded_now(directory: Path) -> dict[str, Any]:
    tree = journal.open(directory).as_of().to_pylist()
    return {row["path"]: None if row["value"] is None else json.loads(row["value"]) for row in tree}


def test_what_was_missed_is_made_good(start_daemon: StartDaemon, directory: Path) -> None:
    """After a gap the journal knows what is there: what changed, came and went in it is told again as it is now."""
    options = ("--journal-fsync", "interval", "--journal-buffer-mb", "1", "--journal-flush-ms", "10")
    daemon = start_daemon("--journal", str(directory), *options)
    with daemon.connect() as owner, daemon.connect() as other:
        for path in ("d/changed", "d/removed", "d/again", "d/quiet", "d/big"):
            owner.result("add", {"path": path, "value": 0})
        other.result("add", {"path": "d/others", "value": 0})
        until(lambda: stats_of(owner)["pending"] == 0)
        limit_files(daemon, FILE_BYTES)
        owner.result("change", {"path": "d/big", "value": [-1, os.urandom(BIG_BYTES // 2).hex()]})
        until(lambda: stats_of(owner)["problem"])
        owner.result("change", {"path": "d/changed", "value": 1})
        owner.result("remove", {"path": "d/removed"})
        owner.result("remove", {"path": "d/again"})
        owner.result("add", {"path": "d/again", "value": 2, "fetchOnly": True})
        owner.result("add", {"path": "d/fresh", "value": 3})
        owner.result("add", {"path": "d/method"})
        other.close()
        for number in range(15):
            owner.result("change", {"path": "d/big", "value": [number, os.urandom(BIG_BYTES // 2).hex()]})
        until(lambda: stats_of(owner)["problem"] and stats_of(owner)["missed"] > 8)
        limit_files(daemon, resource.RLIM_INFINITY)
        until(lambda: stats_of(owner)["problem"] is None)
        until(lambda: recorded_now(directory) == present(owner))
        wanted = {"d/again": 2, "d/big": [14], "d/changed": 1, "d/fresh": 3, "d/method": None, "d/quiet": 0}
        assert {**recorded_now(directory), "d/big": [recorded_now(directory)["d/big"][0]]} == wanted
        events = committed(daemon, directory)
    again = [event for event in events if is_again(event)]
    assert {event["path"] for event in again} == {"d/changed", "d/again", "d/fresh", "d/method", "d/big"}
    assert {event["peer"] for event in again} == {"#1"}
    assert detail_of(next(event for event in again if event["path"] == "d/again")) == {"again": True, "fetchOnly": True}
    gap = next(event["seq"] for event in events if event["event"] == "gap")
    assert {event["path"] for event in events if event["event"] == "remove" and event["seq"] > gap} >= {
        "d/removed",
        "d/others",
    }


def test_always_waits_for_a_full_disk(start_daemon: StartDaemon, directory: Path) -> None:
    """With ``always`` nothing is acknowledged and no event is sent while the disk is full; both follow later."""
    daemon = start_daemon("--journal", str(directory), "--journal-fsync", "always", "--journal-flush-ms", "10")
    with daemon.connect() as owner, daemon.connect() as fetcher:
        owner.result("add", {"path": "d/x", "value": 0})
        fetcher.result("fetch", {"id": "f", "path": {"equals": "d/x"}})
        assert fetcher.receive()["params"]["value"] == 0
        limit_files(daemon, FILE_BYTES)
        text = os.urandom(BIG_BYTES // 2).hex()
        owner.send({"id": 1, "method": "change", "params": {"path": "d/x", "value": text}})
        until(lambda: json.loads(daemon.http("/health")[2])["status"] == "journal failing")
        assert daemon.metrics()["jetbus_journal_failing"] == 1
        for wire in (owner, fetcher):
            with pytest.raises(TimeoutError):
                wire.receive(within_s=0.2)
        limit_files(daemon, resource.RLIM_INFINITY)
        assert owner.receive() == {"id": 1, "result": True}
        assert fetcher.receive()["params"]["value"] == text
        assert json.loads(journal.open(directory).history("d/x")["value"].to_pylist()[-1]) == text


def test_always_closes_who_waits_in_vain(start_daemon: StartDaemon, directory: Path) -> None:
    """With ``always`` a peer whose events had to be dropped is closed and never acknowledged; others can connect."""
    options = ("--journal-fsync", "always", "--journal-buffer-mb", "1", "--journal-flush-ms", "10")
    daemon = start_daemon("--journal", str(directory), *options)
    with daemon.connect() as owner:
        owner.result("add", {"path": "d/x", "value": 0})
        limit_files(daemon, FILE_BYTES)
        with contextlib.suppress(OSError):
            for number in range(15):
                text = os.urandom(BIG_BYTES // 2).hex()
                owner.send({"id": number, "method": "change", "params": {"path": "d/x", "value": [number, text]}})
        assert owner.await_closed() == []
    until(lambda: "journal_fsync is always, and what they wait for is lost" in daemon.stderr())
    limit_files(daemon, resource.RLIM_INFINITY)
    until(lambda: daemon.metrics()["jetbus_journal_failing"] == 0)
    with daemon.connect() as peer:
        peer.result("add", {"path": "d/y", "value": 1})
        events = committed(daemon, directory)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert any(event["event"] == "gap" for event in events)


def test_disk_full(start_daemon: StartDaemon, directory: Path) -> None:
    """While the disk refuses the bus goes on and everybody is told; when it takes again a gap is recorded."""
    options = ("--journal-fsync", "interval", "--journal-buffer-mb", "1", "--journal-flush-ms", "10")
    daemon = start_daemon("--journal", str(directory), *options)
    with daemon.connect() as owner, daemon.connect() as fetcher:
        owner.result("add", {"path": "d/x", "value": 0})
        fetcher.result("fetch", {"id": "f", "path": {"equals": "d/x"}})
        until(lambda: stats_of(owner)["pending"] == 0)
        assert stats_of(owner)["problem"] is None
        assert json.loads(daemon.http("/health")[2])["status"] == "ok"

        limit_files(daemon, FILE_BYTES)
        numbers = list(range(1, 16))
        for number in numbers:
            text = os.urandom(BIG_BYTES // 2).hex()
            assert owner.result("change", {"path": "d/x", "value": [number, text]}) is True
        received = [fetcher.receive()["params"]["value"] for _ in range(len(numbers) + 1)]
        assert received[0] == 0
        assert [value[0] for value in received[1:]] == numbers
        until(lambda: stats_of(owner)["problem"] and stats_of(owner)["missed"])
        problem = stats_of(owner)["problem"]
        assert str(directory) in problem
        assert "keep less (journal_keep_mb, journal_keep_s)" in problem
        status, _, page = daemon.http("/health")
        assert status == 200
        assert json.loads(page)["status"] == "journal failing"
        assert json.loads(page)["journal"].startswith(str(directory))
        metrics = daemon.metrics()
        assert metrics["jetbus_journal_failing"] == 1
        assert metrics["jetbus_journal_missed_total"] > 0
        assert "cannot write the journal, events wait in memory" in daemon.stderr()

        limit_files(daemon, resource.RLIM_INFINITY)
        until(lambda: stats_of(owner)["problem"] is None)
        owner.result("change", {"path": "d/x", "value": "at last"})
        missed = stats_of(owner)["missed"]
        assert json.loads(daemon.http("/health")[2])["status"] == "ok"
        assert daemon.metrics()["jetbus_journal_failing"] == 0
        assert daemon.metrics()["jetbus_journal_missed_total"] == missed
        events = committed(daemon, directory)
        assert "writing again" in daemon.stderr()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    gaps = [detail_of(event) for event in events if event["event"] == "gap"]
    assert sum(gap["missed"] for gap in gaps) == missed
    assert all(gap["reason"] and gap["since"] for gap in gaps)
    values = [json.loads(event["value"]) for event in events if event["path"] == "d/x" and not is_again(event)]
    stored = [value[0] for value in values[1:-1]]
    assert stored == numbers[len(numbers) - len(stored) :]
    assert len(stored) < len(numbers)
    assert values[-1] == "at last"


def test_directory_removed_under_the_daemon(daemon: Daemon, directory: Path) -> None:
    """If the journal is removed under a running daemon, lost events are counted and present values recorded."""
    with daemon.connect() as owner:
        assert owner.result("add", {"path": "a", "value": 0}) is True
        last = owner.result("call", {"path": "$jet/journal/offsets"})["last"]
        directory.rename(directory.with_name("away"))
        assert owner.result("change", {"path": "a", "value": 1}) is True
        until((directory / "journal.json").exists)
        until(lambda: any(event["event"] == "add" for event in committed(daemon, directory)))
        gap, *events = committed(daemon, directory)
    assert (gap["event"], gap["seq"], detail_of(gap)["missed"]) == ("gap", last + 1, last)
    assert daemon.metrics()["jetbus_journal_missed_total"] == last
    assert "start" in [event["event"] for event in events]
    assert journal.open(directory).as_of()["value"].to_pylist() == ["1"]


def test_numbers_of_the_journal(daemon: Daemon, directory: Path) -> None:
    """The state and the metrics of the journal tell how much is written."""
    with daemon.connect() as wire:
        wire.result("add", {"path": "d/x", "value": 0})
        for number in range(100):
            wire.notify("change", {"path": "d/x", "value": number})
        wire.result("call", {"path": "$jet/journal/offsets"})
        stats = stats_of(wire)
    assert stats["seq"] == 104
    assert stats["events"] == 103
    assert (stats["pending"], stats["missed"], stats["problem"]) == (0, 0, None)
    assert stats["segments"] == 1
    assert 0 < stats["bytes"] <= sum(path.stat().st_size for path in directory.glob("*.arrows"))
    metrics = daemon.metrics()
    assert metrics["jetbus_journal_events_total"] >= 103
    assert metrics["jetbus_journal_bytes_total"] >= stats["bytes"]
    assert metrics["jetbus_journal_segments"] == 1
    assert metrics["jetbus_journal_missed_total"] == 0
    assert metrics["jetbus_journal_failing"] == 0
    assert "jetbus_journal_pending" in metrics


def test_no_journal_no_numbers(start_daemon: StartDaemon) -> None:
    """A daemon without a journal tells nothing of one, and says how to keep one to whoever looks back."""
    daemon = start_daemon()
    with daemon.connect() as wire:
        assert wire.result("get", {"path": {"startsWith": "$jet/journal"}}) == []
        error = wire.error("get", {"asOf": "-1h"})
        assert error["code"] == -32602
        assert "--journal" in error["data"]["message"]
        assert "--journal" in wire.error("fetch", {"id": "f", "since": "-1h"})["data"]["message"]
    assert [name for name in daemon.metrics() if name.startswith("jetbus_journal")] == []
