"""Logins: guessing is slow, and good users get in meanwhile."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from jetbus.bus.access import Auth
from jetbus.bus.conditions import Condition
from jetbus.bus.session import Session
from jetbus.daemon.logins import FREE_FAILURES, KNOWN_THREADS, STRANGER_THREADS, WAIT_S, WAIT_S_MAX, Logins
from jetbus.errors import LimitReached, LoginRefused
from support.daemon import Daemon
from support.inmemory import RecordingOutbox
from support.wire import TcpWire, Wire

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@dataclass
class Limits:
    logins_waiting_max: int = 10
    logins_known_max: int = 10


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """An event loop that is nothing but a clock, which the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[..., None], *args: Any) -> Timer:
        timer = Timer(at, lambda: call(*args))
        self.timers.append(timer)
        return timer

    def go_on(self, seconds: float) -> None:
        """Let time pass, and what was to be called in it be called."""
        until = self.now + seconds
        while due := [timer for timer in self.timers if not timer.cancelled and timer.at <= until]:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call()
        self.now = until


class Threads:
    """Threads whose work is done when the test says so."""

    def __init__(self) -> None:
        self.running: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.begun = 0

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.begun += 1
        self.running.append((work, done))

    def stop(self) -> None:
        self.running.clear()

    def finish(self) -> None:
        """End what is running, but not what begins because of that."""
        running, self.running = self.running, []
        for work, done in running:
            done(work())


class Door:
    """The queue of logins, with a clock and threads of the test."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualLoop()
        self.pools: dict[str, Threads] = {}
        self.hits: Counter[str] = Counter()
        given = Limits(**limits)
        self.logins = Logins(self.clock, self._threads, lambda: given, self.hits)  # type: ignore[arg-type]
        self.answers: list[tuple[str, Any]] = []

    def _threads(self, name: str, _count: int) -> Threads:
        return self.pools.setdefault(name, Threads())

    @property
    def strangers(self) -> Threads:
        return self.pools["jetd-login"]

    @property
    def known(self) -> Threads:
        return self.pools["jetd-known-login"]

    def come(self, address: str, user: str, *, good: bool = False) -> Session:
        """Attempt a login; its answer will be in ``answers``."""
        session = Session(1, RecordingOutbox())
        session.address = address
        # Neither threads nor passwords are real here: the work returns its outcome, good or bad.
        outcome: Any = Auth(user, (), (), ()) if good else LoginRefused()
        self.logins.attempt(session, user, lambda: outcome, lambda result: self.answers.append((user, result)))
        return session

    def finish(self) -> None:
        for threads in self.pools.values():
            threads.finish()

    def users_answered(self) -> list[str]:
        answered, self.answers = [user for user, _ in self.answers], []
        return answered


def fail(door: Door, address: str, user: str, times: int) -> None:
    """Fail so many times, however long it takes."""
    for _ in range(times):
        door.come(address, user)
        door.clock.go_on(WAIT_S_MAX)
        door.finish()
    door.answers.clear()


def test_failures_slow_an_address_down() -> None:
    """After a few failures the attempts of an address begin one after the other, whatever users they name."""
    door = Door(logins_waiting_max=1000)
    fail(door, "10.0.0.1", "x", FREE_FAILURES + 10)
    before = door.strangers.begun
    for number in range(100):
        door.come("10.0.0.1", f"user{number}")
    for _ in range(100):
        door.clock.go_on(WAIT_S_MAX / 10)
        door.finish()
    assert door.strangers.begun - before <= 10 * STRANGER_THREADS + STRANGER_THREADS


def test_failures_slow_a_user_down() -> None:
    """After a few failures the attempts for a user begin one after the other, whatever addresses they come from."""
    door = Door(logins_waiting_max=1000)
    fail(door, "10.0.0.1", "ann", FREE_FAILURES + 10)
    before = door.strangers.begun
    for number in range(100):
        door.come(f"10.0.1.{number}", "ann")
    for _ in range(100):
        door.clock.go_on(WAIT_S_MAX / 10)
        door.finish()
    assert door.strangers.begun - before <= 10 * STRANGER_THREADS + STRANGER_THREADS


def test_known_users_pass() -> None:
    """A user who has logged in from an address before passes all others that wait, of that address and elsewhere."""
    door = Door(logins_waiting_max=1000)
    door.come("10.0.0.1", "ann", good=True)
    door.finish()
    assert door.users_answered() == ["ann"]
    fail(door, "10.0.0.1", "x", FREE_FAILURES + 5)
    fail(door, "10.0.0.2", "ann", FREE_FAILURES + 5)
    for number in range(500):
        door.come("10.0.0.1", f"user{number}")
        door.come("10.0.0.2", "ann")
    door.come("10.0.0.1", "ann", good=True)
    door.known.finish()
    assert door.users_answered() == ["ann"]


def test_known_users_are_slowed_down_by_their_own_failures() -> None:
    """Being known gives nobody more guesses: failures of that user at that address count there, too."""
    door = Door(logins_waiting_max=1000)
    door.come("10.0.0.1", "ann", good=True)
    door.finish()
    fail(door, "10.0.0.1", "ann", FREE_FAILURES + 5)
    before = door.known.begun
    for _ in range(100):
        door.come("10.0.0.1", "ann")
    for _ in range(100):
        door.clock.go_on(WAIT_S_MAX / 10)
        door.finish()
    assert door.known.begun - before <= 10 * KNOWN_THREADS + KNOWN_THREADS


def test_addresses_take_turns() -> None:
    """A stranger from an address of its own need not wait until the queue of another address is empty."""
    door = Door(logins_waiting_max=1000)
    for number in range(100):
        door.come("10.0.0.1", f"user{number}")
    door.come("10.0.0.2", "ann", good=True)
    door.finish()
    door.finish()
    assert "ann" in door.users_answered()


def test_waiting_max() -> None:
    """If too many logins wait, one of the address with the most is refused, and that is counted."""
    door = Door(logins_waiting_max=5)
    for number in range(STRANGER_THREADS + 5):
        door.come("10.0.0.1", f"user{number}")
    assert door.answers == []
    door.come("10.0.0.2", "ann")
    ((user, problem),) = door.answers
    assert user == f"user{STRANGER_THREADS + 4}"
    assert isinstance(problem, LimitReached)
    assert door.hits == {"logins_waiting_max": 1}
    assert door.logins.waiting == STRANGER_THREADS + 5


def test_closed_connections_wait_no_longer() -> None:
    """The attempts of connections that are closed are dropped: opening many of them gains nothing."""
    door = Door(logins_waiting_max=5)
    for number in range(STRANGER_THREADS):
        door.come("10.0.0.1", f"user{number}")
    for number in range(100):
        door.come("10.0.0.1", f"gone{number}").condition = Condition.GONE
    door.come("10.0.0.1", "ann")
    door.finish()
    door.finish()
    assert door.users_answered() == [*(f"user{number}" for number in range(STRANGER_THREADS)), "ann"]


def test_known_max() -> None:
    """No more users are remembered than allowed; the oldest is a stranger again."""
    door = Door(logins_known_max=2)
    for user in ("ann", "bob", "eve"):
        door.come("10.0.0.1", user, good=True)
        door.finish()
    assert door.known.begun == 0
    for user in ("ann", "eve"):
        door.come("10.0.0.1", user, good=True)
    assert (len(door.known.running), len(door.strangers.running)) == (1, 1)


def test_failures_are_forgotten() -> None:
    """A first failure after a long time is a first one."""
    door = Door()
    fail(door, "10.0.0.1", "ann", FREE_FAILURES + 5)
    door.clock.go_on(1000.0)
    fail(door, "10.0.0.1", "ann", 1)
    door.come("10.0.0.1", "ann", good=True)
    assert len(door.strangers.running) == 1


# With a real daemon.


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with the users ann, who is an admin, and bob."""
    users = {name: {"password": CHEAP.hash(f"{name}-pw"), "admin": name == "ann"} for name in ("ann", "bob")}
    (tmp_path / "users.json").write_text(json.dumps({"users": users}))
    with Daemon.start("--users", str(tmp_path / "users.json")) as started:
        yield started


def connect_from(daemon: Daemon, host: str) -> TcpWire:
    """Connect from another address of the loopback."""
    return TcpWire(daemon.address("tcp"), source=host)


def log_in(wire: Wire, user: str) -> None:
    wire.result("authenticate", {"user": user, "password": f"{user}-pw"})


def test_good_users_among_guesses(daemon: Daemon) -> None:
    """While many connections guess, a user who is known logs in, and so does one from an address of his own."""
    with daemon.connect() as ann:
        log_in(ann, "ann")
    guessers = [connect_from(daemon, "127.0.0.1") for _ in range(100)]
    for number, guesser in enumerate(guessers):
        for guess in range(30):
            guesser.send({"id": guess, "method": "authenticate", "params": {"user": f"u{number}", "password": "x"}})
    started = time.monotonic()
    with daemon.connect() as ann, connect_from(daemon, "127.0.0.2") as bob:
        log_in(ann, "ann")
        log_in(bob, "bob")
    assert time.monotonic() - started < WAIT_S * 100 / 4, "the guesses alone would have taken longer"
    assert daemon.metrics()["jetbus_logins_waiting"] > 0
    for guesser in guessers:
        guesser.close()


def test_unknown_user_and_wrong_password_answer_alike(daemon: Daemon) -> None:
    """Nobody learns from the answer to a failed login whether the user exists."""
    answers = []
    for user in ("ann", "nobody"):
        with daemon.connect() as wire:
            answers.append(wire.error("authenticate", {"user": user, "password": "wrong"}))
    assert answers[0] == answers[1]


def test_logins_waiting_max(tmp_path: Path) -> None:
    """A login that finds the queue full is refused with an error that names the limit, which is counted."""
    (tmp_path / "users.json").write_text(json.dumps({"users": {}}))
    with Daemon.start("--users", str(tmp_path / "users.json"), "--logins-waiting-max", "1") as daemon:
        wires = [daemon.connect() for _ in range(20)]
        for wire in wires:
            wire.send({"id": 1, "method": "authenticate", "params": {"user": "x", "password": "y"}})
        reasons = [wire.response(1)["error"]["data"].get("reason") for wire in wires]
        assert "logins_waiting_max reached" in reasons
        assert daemon.limit_hits("logins_waiting_max") == reasons.count("logins_waiting_max reached")
        for wire in wires:
            wire.close()


def test_user_names_are_for_admins(daemon: Daemon) -> None:
    """Only an administrator is told which users are logged in."""
    with daemon.connect() as stranger, daemon.connect() as bob, daemon.connect() as ann:
        for wire, user in ((bob, "bob"), (ann, "ann")):
            log_in(wire, user)
        for wire in (stranger, bob):
            received = wire.result("get", {"path": {"startsWith": "$jet/"}})
            assert "$jet/logins" not in {one["path"] for one in received}
            assert '"bob"' not in json.dumps(received)
        (logins,) = ann.result("get", {"path": {"equals": "$jet/logins"}})
        assert sorted(logins["value"].values()) == ["ann", "bob"]
