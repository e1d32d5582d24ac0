"""record, replay and bridge: a bus into a journal, a journal onto a bus, a bus into another."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus import journal
from jetbus.journal.instants import US_PER_S, write_instant
from support.daemon import Daemon
from support.jet import DEADLINE_S, Jet, Running
from support.plant import record, url_of

Daemons = Callable[..., Daemon]


@pytest.fixture
def other(shared_daemons: Daemons) -> Iterator[jetbus.Peer]:
    """A peer on another bus with nothing on it."""
    daemon = shared_daemons()
    daemon.await_empty()
    with jetbus.Peer(url_of(daemon), name="other") as peer:
        yield peer
    daemon.check()


def tree(folder: Path) -> dict[str, Any]:
    """Return the tree of a journal."""
    try:
        rows = journal.open(folder).as_of().to_pylist()
    except journal.JournalError:
        return {}
    return {row["path"]: row["value"] for row in rows}


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_record_by_density(jet: Jet, owner: jetbus.Peer) -> None:
    """With --density paths are recorded as the first rule that matches says: every change, samples, or nothing."""
    states = {name: owner.add_state(f"dense/{name}", 0) for name in ("every", "sampled", "skipped")}
    densities = ("--density", "dense/skipped => skip; dense/sampled => sample 1h", "--density", "** => every")
    folder = jet.folder / "rec"
    with jet.start("record", "rec", "--rule", "dense/**", *densities) as recording:
        wait_for(lambda: "dense/every" in tree(folder))
        for number in range(1, 4):
            for state in states.values():
                state.change(number)
        wait_for(lambda: tree(folder)["dense/every"] == "3")
        recording.process.send_signal(signal.SIGTERM)
        assert recording.end().code == 0
    rows = journal.open(folder).table(events=["add", "change"]).to_pylist()
    values = {name: [row["value"] for row in rows if row["path"] == f"dense/{name}"] for name in states}
    assert values == {"every": ["0", "1", "2", "3"], "sampled": ["0", "3"], "skipped": []}
    for state in states.values():
        state.remove()


def test_record_then_replay(jet: Jet, owner: jetbus.Peer, other: jetbus.Peer) -> None:
    """A bus is recorded until SIGTERM, and the recording is played onto another bus, below a prefix."""
    state = owner.add_state("carry/a", 1)
    url, folder = jet.environment["JET_URL"], jet.folder / "rec"
    with jet.start("record", url, "rec", "--rule", "carry/**", "--url", "unix://@not-this-one") as recording:
        wait_for(lambda: tree(folder) == {"carry/a": "1"})
        state.change(2)
        owner.add_state("carry/b", {"c": 3})
        wait_for(lambda: "carry/b" in tree(folder))
        recording.process.send_signal(signal.SIGTERM)
        code, out, err = recording.end()
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert 0 < printed.pop("bytes") <= sum(file.stat().st_size for file in folder.glob("*.arrows"))
    assert printed == {"url": url, "folder": "rec", "events": 5, "seq": 5}
    with other.fetch("again/**", policy="every") as fetch:
        done = jet("replay", "rec", "--speed", "max", "--prefix", "again", "--url", other.url)
        seen = [fetch.next(timeout_s=30) for _ in range(5)]
    assert (done.code, done.err, json.loads(done.out)["events"]) == (0, "", 5)
    assert [(event.kind, event.path, event.value) for event in seen] == [
        ("add", "again/carry/a", 1),
        ("change", "again/carry/a", 2),
        ("add", "again/carry/b", {"c": 3}),
        ("remove", "again/carry/a", 2),
        ("remove", "again/carry/b", {"c": 3}),
    ]


def test_a_recording_goes_on(jet: Jet, owner: jetbus.Peer) -> None:
    """A journal that is there is continued; --for ends a recording, and a context names the bus as well."""
    owner.add_state("carry/a", 1)
    url = jet.environment.pop("JET_URL")
    assert jet("context", "add", "here", url).code == 0
    for last in (3, 6):  # each time a start, an add and a stop
        assert jet("record", "here", "rec", "--rule", "carry/*", "--for", "10ms", "-o", "value").out == "3\n"
        assert next(iter(journal.open(jet.folder / "rec").offsets().values()))["last"] == last


def test_parts_of_a_replay(jet: Jet, other: jetbus.Peer) -> None:
    """--from, --until and a rule pick a part; --loop plays it over and over; --stay leaves it until Ctrl-C."""
    end_us = record(jet.folder / "log", 20)
    since, until = (write_instant(end_us - ago * US_PER_S) for ago in (15, 5))
    occupied = jet("replay", "log", "--from", since)
    assert occupied.code == 1
    assert "exists on that bus already; use a prefix" in occupied.err
    part = ["replay", "log", "plant/tank/*", "--from", since, "--speed", "1000", "--url", other.url]
    assert json.loads(jet(*part, "--until", until).out)["events"] == 9  # after --from, before --until
    printed = json.loads(jet(*part, "--loop", "--for", "1s").out)
    assert printed["rounds"] > 1
    with jet.start(*part, "--stay") as staying:
        wait_for(lambda: other.get_all("plant/**") == {"plant/tank/level": 20})
        with pytest.raises(jetbus.ReadOnly):
            other.set("plant/tank/level", 1)
        assert staying.interrupt() == (130, "", "")
    assert other.get_all("plant/**") == {}


def status(bridging: Running) -> tuple[str, int]:
    printed = json.loads(bridging.line())
    return printed["status"], printed["mounted"]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_bridge(jet: Jet, owner: jetbus.Peer, other: jetbus.Peer, end: signal.Signals) -> None:
    """Another bus is mounted below a prefix: its states, sets and calls; Ctrl-C and SIGTERM take it away."""
    got: list[Any] = []
    owner.add_state("carry/a", 1, on_set=got.append)
    owner.add_method("carry/sum", lambda a, b: a + b)
    far = jet.environment["JET_URL"]
    with jet.start("bridge", far, "--prefix", "far", "--rule", "carry/*", "--url", other.url) as bridging:
        assert [status(bridging), status(bridging)] == [("mounting", 0), ("mounted", 2)]
        assert other.get_all("far/carry/*") == {"far/carry/a": 1}
        other.set("far/carry/a", 5)
        assert got == [5]
        assert other.call("far/carry/sum", 2, 3) == 5
        assert json.loads(jet("get", "far/**", "--url", other.url).out) == {"path": "far/carry/a", "value": 5}
        for words in (("ls", "far"), ("ls", "far/**"), ("watch", "far/**", "--for", "500ms")):
            shown = jet(*words, "-o", "jsonl", "--url", other.url).out
            assert ("far/carry/a" in shown, "$bridge" in shown) == (True, False), words
        for words in (("get", "far/$bridge"), ("ls", "far/$bridge"), ("watch", "far/$bridge", "--count", "1")):
            assert "secret" in jet(*words, "-o", "jsonl", "--url", other.url).out, "on request"
        bridging.process.send_signal(end)
        code, out, err = bridging.end()
    assert (code, out, err) == (130 if end == signal.SIGINT else 0, "", "")
    assert other.get_all("far/**") == {}


def test_bridge_with_a_login_says_who_may_see(jet: Jet) -> None:
    """With a login on the other bus, jet bridge wants to know who may see here what is mounted."""
    login = ["--far-user", "ann", "--far-password-file", "-"]
    refused = jet("bridge", "jet://localhost:1", "--prefix", "far", *login, stdin="x")
    assert refused.code == 2
    assert "say who may see it here with --fetch-groups, --set-groups and --call-groups" in refused.err
    for words in (["--public"], ["--fetch-groups", "staff"]):
        assert jet("bridge", "jet://localhost:1", "--prefix", "far", *login, *words, stdin="x").code == 3


def test_bridge_with_groups(jet: Jet, owner: jetbus.Peer, other: jetbus.Peer) -> None:
    """Mounts with groups are hidden from users without one of them."""
    owner.add_state("carry/hidden", 1)
    far = jet.environment["JET_URL"]
    words = ["--prefix", "far", "--rule", "carry/*", "--fetch-groups", "staff", "--url", other.url]
    with jet.start("bridge", far, *words) as bridging:
        assert [status(bridging), status(bridging)] == [("mounting", 0), ("mounted", 1)]
        assert "far/carry/hidden" not in other.get_all("far/**")
        bridging.interrupt()
