"""Blocks of JSON and TOML are what they say: messages that a daemon is sent and tells, its users, its settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import jetbus.journal
from docs.test_blocks import BLOCKS, name_of
from support.daemon import COMMAND, Daemon
from support.docs import DOCS, FREE_PORTS, Block
from support.program import Program
from support.wire import TcpWire, Wire

PLAIN = [block for block in BLOCKS if (block.language, block.word) in (("json", ""), ("toml", ""))]
SETTINGS_FILES = [block for block in BLOCKS if block.word == "jetd.toml"]
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Place(NamedTuple):
    """Surroundings of a block: an empty bus, a way to start other daemons, an empty folder."""

    daemon: Daemon
    start: Callable[..., Daemon]
    folder: Path


def messages(block: Block) -> list[Any]:
    """The value of a block of JSON, or those of its lines."""
    try:
        return [json.loads(block.text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in block.text.splitlines()]


# -- what is sent


def is_sent(block: Block, place: Place) -> None:
    """The daemon takes these requests."""
    with place.daemon.connect() as peer:
        for message in messages(block):
            peer.send(message)
            assert peer.response(message["id"])["result"] is True


def is_added(block: Block, place: Place) -> None:
    """These are params of an ``add`` that the daemon takes."""
    with place.daemon.connect() as owner:
        assert [owner.result("add", params) for params in messages(block)] == [True]


def sorts(block: Block, place: Place) -> None:
    """These are params of fetches, which are told what has such a value, in such an order."""
    orders = (["a", "b", "c"], ["b", "a"], ["c"])
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        for path, value in (("b", 2), ("a", 1), ("c", {"age": 3})):
            owner.result("add", {"path": path, "value": value})
        for params, order in zip(messages(block), orders, strict=True):
            peer.result("fetch", {"id": "f", **params})
            assert [change["path"] for change in peer.receive()["params"]["changes"]] == order
            peer.result("unfetch", {"id": "f"})


# -- what is told


def is_told(block: Block, place: Place) -> None:
    """A fetch reports the events of a block, and only these, if an owner causes them."""
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        peer.result("fetch", {"id": messages(block)[0]["method"]})
        for message in messages(block):
            received = message["params"]
            owner.result(received["event"], {name: received[name] for name in ("path", "value") if name in received})
            assert peer.receive() == message


def is_told_with_schema(block: Block, place: Place) -> None:
    """A method that is added with a schema, and then given another one, is told so to whoever asks for schemas."""
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        peer.result("fetch", {"id": messages(block)[0]["method"], "schema": True})
        for message in messages(block):
            received = message["params"]
            owner.result(received["event"], {"path": received["path"], "schema": received["schema"]})
            assert peer.receive() == message


def refuses_by_schema(block: Block, place: Place) -> None:
    """A set whose value does not fit the schema is answered with this error."""
    (message,) = messages(block)
    schema = {"type": "object", "properties": {"speed": {"type": "number", "maximum": 3000}}}
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        owner.result("add", {"path": "pump", "value": {"speed": 0}, "schema": schema, "check": "schema"})
        peer.send({"id": message["id"], "method": "set", "params": {"path": "pump", "value": {"speed": 4000}}})
        assert peer.receive() == message


def is_told_with_meta(block: Block, place: Place) -> None:
    """A change with time and quality is told so to whoever asks for them."""
    (message,) = messages(block)
    received = message["params"]
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        owner.result("add", {"path": received["path"], "value": 0})
        peer.result("fetch", {"id": message["method"], "meta": True})
        assert peer.receive()["params"]["event"] == "add"
        owner.result("change", {name: received[name] for name in ("path", "value", "ts", "quality")})
        assert peer.receive() == message


def is_told_with_its_place(block: Block, place: Place) -> None:
    """A change is told with its place in the journal, as here but for the seq and the instant."""
    (message,) = messages(block)
    received = message["params"]
    daemon = place.start("--journal", str(place.folder / "journal"))
    with daemon.connect() as owner, daemon.connect() as peer:
        owner.result("add", {"path": received["path"], "value": 0})
        peer.result("fetch", {"id": message["method"], "recorded": True})
        assert peer.receive()["params"]["event"] == "add"
        owner.result("change", {name: received[name] for name in ("path", "value")})
        told = peer.receive()
    recorded = told["params"]["recorded"]
    assert isinstance(recorded["seq"], int)
    assert _INSTANT.fullmatch(recorded["ts"])
    recorded |= {name: received["recorded"][name] for name in ("seq", "ts")}
    assert told == message


def is_told_together(block: Block, place: Place) -> None:
    """Changes that come in one message are told in this one."""
    (message,) = messages(block)
    received = message["params"]
    changes = list(zip(received[::3], received[1::3], received[2::3], strict=True))
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        for path, _value, only in changes:
            owner.result("add", {"path": path, "value": 0, "fetchOnly": only})
        peer.result("fetch", {"id": message["method"], "together": True})
        assert [peer.receive()["params"]["event"] for _ in changes] == ["add"] * len(changes)
        owner.send([{"method": "change", "params": {"path": path, "value": value}} for path, value, _only in changes])
        assert peer.receive() == message


def is_told_of_a_node(block: Block, place: Place) -> None:
    """A node is told with its first element to whoever asks for nodes."""
    (message,) = messages(block)
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        peer.result("fetch", {"id": message["method"], "nodes": True})
        owner.result("add", {"path": f"{message['params']['path']}/temp", "value": 21})
        assert peer.receive() == message


def is_told_sorted(block: Block, place: Place) -> None:
    """One that comes between two others is told with the one that it moves."""
    (message,) = messages(block)
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        for path, value in (("a", 1), ("c", 3)):
            owner.result("add", {"path": path, "value": value})
        peer.result("fetch", {"id": message["method"], "sort": {"byValue": "number"}})
        assert peer.receive()["params"]["n"] == 2
        owner.result("add", {"path": "b", "value": 2})
        assert peer.receive() == message


def reaches_the_owner(block: Block, place: Place) -> None:
    """A set and a call come to the owner as these requests, but for ids, which are the daemon's."""
    asked, called = messages(block)
    with place.daemon.connect() as owner, place.daemon.connect() as peer:
        owner.result("add", {"path": asked["method"], "value": 0})
        owner.result("add", {"path": called["method"]})
        peer.send({"id": 1, "method": "set", "params": {"path": asked["method"], **asked["params"]}})
        peer.send({"id": 2, "method": "call", "params": {"path": called["method"], "args": called["params"]}})
        for message in (asked, called):
            got = owner.receive()
            assert got | {"id": message["id"]} == message
            owner.send({"id": got["id"], "result": True})
        assert [peer.response(number)["result"] for number in (1, 2)] == [True, True]


def looks_back(block: Block, place: Place) -> None:
    """A fetch of the past is told what was and then what comes, as here but for the instants."""
    request, answer, *events = messages(block)
    daemon = place.start("--journal", str(place.folder / "journal"))

    def timeless(message: Any) -> Any:
        instant = message["params"].get("ts")
        return message["params"] | ({"ts": bool(_INSTANT.fullmatch(instant))} if instant else {})

    with daemon.connect() as owner, daemon.connect() as peer:

        def happens(received: dict[str, Any]) -> None:
            owner.result(received["event"], {"path": received["path"], "value": received["value"]})

        for event in events[:-1]:
            happens(event["params"])
        peer.send(request)
        assert peer.receive() == answer
        assert [timeless(peer.receive()) for _ in events[:-1]] == [timeless(event) for event in events[:-1]]
        happens(events[-1]["params"])
        assert peer.receive() == events[-1]


# -- users and settings


def has_users(block: Block, place: Place) -> None:
    """A daemon with this file knows these users by their passwords, and their groups."""
    (content,) = messages(block)
    file = place.folder / "users.json"
    file.write_text(block.text)
    daemon = place.start("--users", str(file))
    for name, user in content["users"].items():
        with daemon.connect() as peer:
            groups = peer.result("authenticate", {"user": name, "password": user["password"]})
            received = {kind: held for kind, held in user["auth"].items() if kind != "addGroups"}  # no peer reads these
            assert {kind: found for kind, found in groups.items() if found} == received


@contextmanager
def configured(text: str, folder: Path, *flags: str) -> Iterator[Wire]:
    """A peer of a daemon with these settings, at free ports and below a folder."""
    text = re.sub(r'"(?:\*|localhost):\d+"', '"127.0.0.1:0"', text)
    text = re.sub(r"/(?:run|var/lib)/jetd", str(folder), text)
    (folder / "jetd.toml").write_text(text)
    settings = tomllib.loads(text)
    if "users" in settings:
        Path(settings["users"]).write_text('{"users": {}}')
    ports = {name: port for name, port in FREE_PORTS.items() if name.removeprefix("JET_").lower() not in settings}
    command = (*COMMAND, "--config", str(folder / "jetd.toml"), *flags)
    with Program(*command, environment={**os.environ, **ports}) as daemon:
        ready = re.match(r"ready tcp=(\S+):(\d+)", str(daemon.line()))
        assert ready, daemon.end()
        with TcpWire((ready[1], int(ready[2]))) as peer:
            yield peer
        code, complaints = daemon.interrupt()
        assert code == 0, complaints


def configures(block: Block, place: Place) -> None:
    """A daemon starts with these settings; its limits are those, and what is to be written is there."""
    with configured(block.text, place.folder) as peer:
        (limits,) = peer.result("get", {"path": {"equals": "$jet/limits"}})
        for name, value in tomllib.loads(block.text).items():
            assert limits["value"].get(name, value) == value
            if name in ("journal", "unix", "users"):
                assert (place.folder / Path(value).name).exists()


def configures_the_journal(block: Block, place: Place) -> None:
    """Paths that a rule skips are not recorded, and all others are."""
    skipped, kept = "plant/secret/a", "plant/open/b"
    with configured(block.text, place.folder, "--journal", str(place.folder / "journal")) as owner:
        for path in (skipped, kept):
            owner.result("add", {"path": path, "value": 1})
    added = jetbus.journal.open(str(place.folder / "journal")).table(events=["add"])
    assert added["path"].to_pylist() == [kept]


Use = Callable[[Block, Place], None]
USES: dict[str, tuple[Use, ...]] = {
    "docs/daemon.md: Settings": (configures,),
    "docs/daemon.md: Memory": (configures,),
    "docs/daemon.md: Users and access groups": (is_sent, has_users),
    "docs/daemon.md: Rights by path": (has_users,),
    "docs/history-reference.md: Densities": (configures_the_journal,),
    "docs/howto/cjet.md: Users": (is_added,),
    "docs/howto/secure.md: 5. Change the rules": (has_users,),
    "docs/howto/service.md: With systemd": (configures,),
    "docs/protocol.md: Events": (is_told, is_told_together, is_told_of_a_node),
    "docs/protocol.md: Looking back": (looks_back,),
    "docs/protocol.md: Place in the journal": (is_told_with_its_place,),
    "docs/protocol.md: Requests to an owner": (reaches_the_owner,),
    "docs/protocol.md: Schemas": (is_told_with_schema, refuses_by_schema),
    "docs/protocol.md: Time and quality": (is_told_with_meta,),
    "docs/protocol.md: Sorted fetches": (sorts, is_told_sorted),
}
"""What the blocks below a heading are for, in their order."""
FOUND = {
    heading: [block for block in (*PLAIN, *SETTINGS_FILES) if f"{name_of(block)}: {block.heading}" == heading]
    for heading in USES
}
BLOCKS_AND_USES = [
    pytest.param(block, use, id=f"{block.where} {use.__name__}")
    for heading, blocks in FOUND.items()
    for block, use in zip(blocks, USES[heading], strict=True)
]


def test_every_block_has_a_use() -> None:
    """All blocks of JSON and TOML are used; say in USES what a new one is for."""
    used = {block for blocks in FOUND.values() for block in blocks}
    assert [block.where for block in PLAIN if block not in used] == []


@pytest.mark.parametrize(("block", "use"), BLOCKS_AND_USES)
def test_blocks_are_used(
    block: Block, use: Use, daemon: Daemon, start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """A block is taken by a real daemon, or is what one tells."""
    use(block, Place(daemon, start_daemon, tmp_path))


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (is_sent, '{"id": 1, "method": "add", "params": {"path": "a", "value": 0, "access": 1}}'),
        (sorts, '{"sort": {"byPath": true, "descending": true}}'),
        (is_told, '{"method": "f", "params": {"path": "a", "event": "add", "value": 1, "fetchOnly": true}}'),
        (has_users, '{"users": {"ann": {"password": "x", "auth": {"fetchGruops": ["staff"]}}}}'),
        (configures, "elements_mxa = 1"),
        (configures_the_journal, 'journal_rules = ["plant/open/** => skip"]'),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_wrong_blocks_are_found(
    use: Use, text: str, daemon: Daemon, start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """Blocks that a daemon does not accept, or does not send, are found."""
    with pytest.raises((AssertionError, KeyError)):
        use(PLAIN[0]._replace(text=text), Place(daemon, start_daemon, tmp_path))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
@pytest.mark.parametrize("file", sorted(DOCS.glob("*.service")), ids=lambda file: file.stem)
def test_the_unit_is_one(tmp_path: Path, file: Path) -> None:
    """systemd finds nothing wrong with a unit that a page offers, were its program where it says."""
    unit = tmp_path / file.name
    text = re.sub(r"/opt/jetbus/bin/\w+", COMMAND[0], file.read_text(encoding="utf-8"))
    # Services that are not installed here.
    unit.write_text(re.sub(r"^After=.*$", "", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
