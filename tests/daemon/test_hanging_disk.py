"""A disk that hangs: the bus goes on. Only with ``always``, which promises more, does it wait, and it says so."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus import journal
from jetbus.daemon import journaling
from jetbus.testing import RunningDaemon, running_daemon
from support.daemon import Daemon
from support.disk import frozen, make_image, mounted
from support.wire import DEADLINE_S

FSYNCS = ["interval", "never"]


def until(true: Callable[[], Any]) -> Any:
    """Ask again and again until something is true."""
    deadline = time.monotonic() + 3 * DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < deadline, "it does not become true"
    return found


def health_of(where: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{where}/health", timeout=DEADLINE_S) as answer:
        health: dict[str, Any] = json.loads(answer.read())
    return health


class Hang:
    """Real writes and syncs of files in a folder, which wait for as long as it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = folder
        self._goes = threading.Event()
        self._goes.set()
        self.reached = threading.Event()
        for name in ("pwrite", "fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._waiting(getattr(os, name)))

    def _waiting(self, really: Callable[..., Any]) -> Callable[..., Any]:
        def wait(descriptor: int, *rest: Any) -> Any:
            if not self._goes.is_set() and Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(self._folder):
                self.reached.set()
                assert self._goes.wait(6 * DEADLINE_S)
            return really(descriptor, *rest)

        return wait

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        self._goes.clear()
        try:
            yield
        finally:
            self._goes.set()


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hang:
    """A disk that can hang, for as long as a slow machine needs; nobody who looks back becomes impatient meanwhile."""
    monkeypatch.setattr(journaling, "DISK_WAIT_S", 6 * DEADLINE_S)
    return Hang(monkeypatch, tmp_path / "journal")


@contextlib.contextmanager
def recorded(directory: Path, **settings: Any) -> Iterator[tuple[RunningDaemon, jetbus.Peer]]:
    with running_daemon(journal=directory, **settings) as daemon, jetbus.Peer(daemon.url) as peer:
        yield daemon, peer


def looking_back(url: str, look: Callable[[jetbus.Peer], Any]) -> tuple[threading.Thread, list[Any]]:
    """Look back in a thread of its own; gives what it found, or the error."""
    found: list[Any] = []

    def run() -> None:
        with jetbus.Peer(url) as peer:
            try:
                found.append(look(peer))
            except jetbus.JetError as error:
                found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def offsets(peer: jetbus.Peer) -> Any:
    return peer.call("$jet/journal/offsets")


@pytest.mark.parametrize("fsync", FSYNCS)
def test_bus_goes_on(fsync: str, hang: Hang, tmp_path: Path) -> None:
    """While the disk hangs, sets, gets and fetches are served, also when many have asked for the past."""
    with recorded(tmp_path / "journal", journal_fsync=fsync) as (daemon, peer):
        state = peer.add_state("a", 0, on_set=lambda _value: None)
        with hang.hanging():
            threads = [looking_back(daemon.url, offsets) for _ in range(3)]
            threads += [looking_back(daemon.url, lambda one: one.get_all("a", as_of="now"))]
            assert hang.reached.wait(DEADLINE_S)
            with jetbus.Peer(daemon.url) as other:
                for value in range(1, 20):
                    other.set("a", value)
                    assert other.get_all("a") == {"a": value}
            state.change(20)
            assert not any(found for _, found in threads)
        for thread, _ in threads:
            thread.join(DEADLINE_S)
        assert all(found and not isinstance(found[0], Exception) for _, found in threads)
        assert offsets(peer)["last"] > 0
    values = journal.open(tmp_path / "journal").history("a")["value"].to_pylist()
    assert values[:21] == [str(number) for number in range(21)]


def test_logins_do_not_wait_for_the_past(hang: Hang, tmp_path: Path) -> None:
    """However many look back while the disk hangs, a user can log in."""
    users = tmp_path / "users.json"
    users.write_text('{"users": {"ann": {"password": "x", "auth": {"fetchGroups": ["staff"]}}}}')
    settings = {"users": users, "journal_groups": ("staff",)}
    with running_daemon(journal=tmp_path / "journal", **settings) as daemon, hang.hanging():
        threads = []
        for _ in range(4):
            url = daemon.url.replace("jet://", "jet://ann:x@")
            threads.append(looking_back(url, offsets)[0])
        assert hang.reached.wait(DEADLINE_S)
        with jetbus.Peer(daemon.url, user="ann", password="x") as peer:
            assert peer.get_all("$jet/version")
    for thread in threads:
        thread.join(DEADLINE_S)


def test_since_while_the_disk_hangs(hang: Hang, tmp_path: Path) -> None:
    """A fetch that begins in the past is told everything once, in order, though the disk hung meanwhile."""
    with recorded(tmp_path / "journal") as (daemon, owner):
        state = owner.add_state("a", 0)
        with jetbus.Peer(daemon.url) as peer:
            with hang.hanging():
                fetch = peer.fetch("a", since="-1h", policy="every")
                assert hang.reached.wait(DEADLINE_S)
                for value in range(1, 50):
                    state.change(value)
                with jetbus.Peer(daemon.url) as other:
                    until(lambda: other.get_all("a") == {"a": 49})
            received = []
            for event in fetch:
                received.append(event.value)
                if event.value == 49:
                    break
    assert received == list(range(50))


def test_impatient_reader(hang: Hang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks back is told after a while that the disk does not answer, and others get their turn."""
    monkeypatch.setattr(journaling, "DISK_WAIT_S", 0.2)
    with recorded(tmp_path / "journal") as (_daemon, peer), hang.hanging():
        for _ in range(3):
            with pytest.raises(jetbus.JetError, match=r"has not answered for 0\.2 s"):
                offsets(peer)
        with pytest.raises(jetbus.JetError, match="try again later"):
            peer.get_all("**", as_of="now")
        assert peer.get_all("**") == {}


def test_health_says_that_the_disk_hangs(hang: Hang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that does not come back is a problem, in /health and in the metrics, until it does."""
    monkeypatch.setattr(journaling, "DISK_SLOW_S", 0.2)
    with recorded(tmp_path / "journal") as (daemon, peer):
        where = daemon.listening["ws"]
        assert health_of(where)["status"] == "ok"
        assert "journal_waits" not in health_of(where)
        with hang.hanging():
            peer.add_state("a", 0)
            health = until(lambda: "journal" in (found := health_of(where)) and found)
            assert health["status"] == "journal failing"
            assert "the disk has not answered for" in health["journal"]
            assert (
                "the disk has not answered for" in peer.get_all("$jet/journal/stats")["$jet/journal/stats"]["problem"]
            )
        until(lambda: health_of(where)["status"] == "ok")


def test_always_says_that_it_waits(tmp_path: Path) -> None:
    """With always /health says that the bus waits for the disk, why, and for how long it has."""
    with recorded(tmp_path / "journal", journal_fsync="always") as (daemon, peer):
        peer.add_state("a", 0)
        waits = health_of(daemon.listening["ws"])["journal_waits"]
        assert "journal_fsync = always" in waits["because"]
        assert 0 < waits["waited_longest_s"] <= waits["waited_s"]


@pytest.mark.parametrize("fsync", FSYNCS)
def test_frozen_file_system(fsync: str, tmp_path: Path) -> None:
    """With a file system that is really frozen the bus goes on, and nothing is missing when it thaws."""
    image = tmp_path / "disk.img"
    make_image(image)
    with mounted(image, tmp_path / "disk") as place:
        options = ("--journal", str(place / "journal"), "--journal-fsync", fsync, "--log-level", "error")
        with Daemon.start(*options) as daemon, daemon.connect() as owner, daemon.connect() as asking:
            assert owner.result("add", {"path": "a", "value": 0}) is True
            assert owner.result("call", {"path": "$jet/journal/offsets"})["last"] > 0
            with frozen(place):
                assert owner.result("change", {"path": "a", "value": 1}) is True
                asking.send({"id": 1, "method": "call", "params": {"path": "$jet/journal/offsets", "args": {}}})
                asking.send({"id": 2, "method": "get", "params": {"asOf": "now"}})
                for value in range(2, 200):
                    assert owner.result("change", {"path": "a", "value": value}) is True
                assert owner.result("get", {"path": {"equals": "a"}})[0]["value"] == 199
                assert json.loads(daemon.http("/health")[2])["connections"] >= 2
            assert {asking.receive()["id"], asking.receive()["id"]} == {1, 2}
            owner.result("call", {"path": "$jet/journal/offsets"})
        values = journal.open(place / "journal").history("a", events=["add", "change"])["value"].to_pylist()
        assert values == [str(number) for number in range(200)]
        assert journal.verify(place / "journal") == []
