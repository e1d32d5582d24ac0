"""Conditions of sessions: every step of the table is walked, and a peer may end at each of them.

The daemon, its connections and its bus are real. In place of the operating system there are lines in memory, a worker
that works when it is told to, a journal without files, and a loop whose time can be moved.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from jetbus.bus import conditions
from jetbus.bus.access import Auth
from jetbus.bus.conditions import TRANSITIONS, Cause, Condition
from jetbus.bus.ports import UnqueuedLogins
from jetbus.bus.preparations import SMALL_SEARCH
from jetbus.daemon.config import Config
from jetbus.daemon.connection import BinaryConnection, StreamConnection
from jetbus.daemon.daemon import Daemon
from jetbus.errors import Invalid, JetError
from jetbus.wire.binary import INFO_MESSAGE, VERSION
from support.inmemory import MemoryTransport, frames_of

STATES = SMALL_SEARCH + 50
"""States of the owner: so many that a get of all needs room, and several steps."""
PEERS_MAX = 3
PASSES_MAX = 3000
"""Passes of the loop after which a peer that still waits waits for ever."""
LONG = "x" * 70_000
OVERLONG = struct.pack(">I", 1 << 30)
RESET = ConnectionResetError("reset by the test")


# The outside of the daemon.


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose time can be moved forward."""

    offset_s = 0.0

    def time(self) -> float:
        return time.monotonic() + self.offset_s

    def run_pass(self) -> None:
        """Let some time pass, and run everything that is due."""
        self.offset_s += 0.02
        self.run_until_complete(asyncio.sleep(0))


class Worker:
    """A worker that works when it is told to."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def do() -> None:
            try:
                outcome = work()
            except JetError as error:
                outcome = error
            done(outcome)

        self.work.append(do)

    def later(self, _delay_s: float, then: Callable[[], None]) -> None:
        self.work.append(then)


class Users:
    """Users whose passwords anybody may change."""

    path_rules = None

    def auth_of(self, _name: str) -> Auth | None:
        return None

    def auth_of_process(self, _credentials: Any) -> Auth | None:
        return None

    def auth_of_certificate(self, _names: Iterable[str]) -> Auth | None:
        return None

    def passwd(self, _actor: str | None, _name: str, _password: str) -> None: ...


class Pages:
    """A reader of the past whose second page cannot be read."""

    def __init__(self) -> None:
        self._has_read = False

    def read_page(self, _seam: Any) -> tuple[list[Any], bool]:
        if self._has_read:
            raise Invalid("since", "the disk is gone")
        self._has_read = True
        return [], False


class Past:
    """A journal without events."""

    def check(self, _auth: Auth | None, _instant: Any) -> None: ...

    def since(self, _instant: Any, _rule: Any) -> Pages:
        return Pages()

    def bring_up_to_date(self, _rule: Any = None) -> Past:
        return self

    def end(self) -> list[Any]:
        return []


class Line(MemoryTransport):
    """The line of a peer: bytes on their way to the daemon, and what the daemon has written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str) -> None:
        super().__init__()
        self._extra = {"peername": (host, 1000)}
        self._loop = loop
        self.connection: StreamConnection | None = None
        self.sent: deque[bytes | None] = deque()
        """Bytes that the daemon has not read yet; None for the end."""
        self.reads = True
        self.broken = False
        self.lost = False
        self._closing = False
        self._paused = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self._closing or self.lost

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.broken:
            raise RuntimeError("broken by the test")
        if self.is_closing():
            return
        super().write(data)
        if self.stuck_bytes and not self._paused:
            self._paused = True
            self._require_connection().pause_writing()

    def unstick(self) -> None:
        """Read all that the daemon has written, and all that it will write."""
        self.stuck, self.stuck_bytes = False, 0
        if self._paused and not self.lost:
            self._paused = False
            self._require_connection().resume_writing()
        if self._closing:
            self.lose(None)

    def close(self) -> None:
        self._closing = True
        if not self.stuck_bytes:
            self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self._closing = True
        self._loop.call_soon(self.lose, None)

    def lose(self, problem: Exception | None) -> None:
        """Tell the connection that the line is gone."""
        if not self.lost:
            self.lost = True
            self._require_connection().connection_lost(problem)

    def deliver(self) -> bool:
        """Let the daemon read the next bytes, if it wants to; return whether it did."""
        if not self.sent or not self.reads or self.is_closing():
            return False
        data = self.sent.popleft()
        if data is not None:
            self._require_connection().data_received(data)
        elif not self._require_connection().eof_received():
            self.close()
        return True

    def _require_connection(self) -> StreamConnection:
        assert self.connection is not None
        return self.connection


class Peer:
    """A peer with a line to the daemon, and what it expects of it."""

    def __init__(
        self, daemon: Daemon, loop: MovableLoop, number: int, kind: type[StreamConnection] = StreamConnection
    ) -> None:
        self.number = number
        self.line = Line(loop, f"10.0.0.{number % 2}")
        self.connection = self.line.connection = kind(daemon, "tcp")
        self.connection.connection_made(self.line)
        assert self.connection.session is not None
        self.session = self.connection.session
        self.marks = 0
        """Marks that it has sent; see ``mark``."""
        self.requests: list[int] = []
        self.must_count = 0
        """Marks that must reach the owner, whatever becomes of the peer."""
        self.ends = False

    def send(self, *messages: Any) -> None:
        """Send messages in one write."""
        texts = [json.dumps(message, separators=(",", ":")).encode() for message in messages]
        self.line.sent.append(b"".join(struct.pack(">I", len(text)) + text for text in texts))

    def request(self, method: str, params: Any) -> None:
        self.requests.append(len(self.requests))
        self.send({"id": self.requests[-1], "method": method, "params": params})

    def mark(self, padding: str = "") -> None:
        """Send a set with the next number, which the owner sees."""
        value = [self.number, self.marks]
        self.marks += 1
        self.send({"method": "set", "params": {"path": "marks", "value": value, "note": padding}})

    def close(self) -> None:
        self.line.sent.append(None)
        self.must_count, self.ends = self.marks, True

    def reset(self) -> None:
        self.line.lose(RESET)
        self.ends = True

    def break_line(self) -> None:
        """Let the next write to it fail, and ask for one."""
        self.request("echo", [])
        self.line.broken = self.ends = True

    def break_framing(self) -> None:
        self.line.sent.append(OVERLONG)
        self.must_count, self.ends = self.marks, True

    def be_closed(self) -> None:
        self.connection.outbox.abort()
        self.ends = True


ENDS: dict[str, Callable[[Peer], None]] = {
    "close": Peer.close,
    "reset": Peer.reset,
    "error in writing": Peer.break_line,
    "error in framing": Peer.break_framing,
    "closed by the daemon": Peer.be_closed,
}


class World:
    """A daemon without sockets, an owner, and peers that come and go."""

    def __init__(self) -> None:
        self.loop = MovableLoop()
        self.worker = Worker()
        self.peers: list[Peer] = []
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        nowhere: dict[str, Any] = dict.fromkeys(("tcp", "ws", "unix", "binary", "binary_unix"))
        self.daemon = Daemon(Config(**nowhere, unread_bytes_max=1000, search_bytes_max=1))
        self.bus = bus = self.daemon.bus
        bus.permissions.users = Users()  # type: ignore[assignment]
        bus.logins, bus.worker = UnqueuedLogins(self.worker), self.worker
        bus.history, bus.history_worker = Past(), self.worker  # type: ignore[assignment]
        self.set_patience(True)
        self.owner = Peer(self.daemon, self.loop, 0)
        paths = ["marks", *(f"s/{number}" for number in range(STATES))]
        self.owner.send(*({"method": "add", "params": {"path": path, "value": 0}} for path in paths))
        self.owner.line.deliver()

    def stop(self) -> None:
        self.loop.run_until_complete(self.daemon.stop())
        self.loop.close()

    def set_patience(self, patient: bool) -> None:
        """Make turns endless, or over as soon as they start."""
        self.daemon.turns.turn_s = 1000.0 if patient else -1.0

    def connect(self, kind: type[StreamConnection] = StreamConnection) -> Peer:
        peer = Peer(self.daemon, self.loop, len(self.peers) + 1, kind)
        self.peers.append(peer)
        return peer

    def settle(self) -> None:
        """Deliver, work and read until nothing is left to do."""
        for peer in self.peers:
            peer.line.unstick()
        for _ in range(PASSES_MAX):
            for peer in [self.owner, *self.peers]:
                peer.line.deliver()
            if self.worker.work:
                self.worker.work.popleft()()
            self.loop.run_pass()
            if self._is_quiet():
                return
        raise AssertionError(f"waits for ever: {[(peer.number, peer.session.condition) for peer in self.peers]}")

    def _is_quiet(self) -> bool:
        turns, bus = self.daemon.turns, self.bus
        if turns.heavy_count or turns.collecting or bus.departing or self.worker.work:
            return False
        return all(
            peer.session.condition is (Condition.GONE if peer.ends else Condition.READY)
            and (peer.ends or (peer.line.reads and not peer.line.sent))
            for peer in self.peers
            if not peer.session.gone
        )

    def check(self) -> None:
        """Check that no message is lost, nobody waits, and peers that have left have left nothing."""
        self.settle()
        marks: dict[int, list[int]] = {peer.number: [] for peer in self.peers}
        for message in map(json.loads, frames_of(self.owner.line.written)):
            number, mark = message["params"]["value"]
            marks[number].append(mark)
        for peer in self.peers:
            count = len(marks[peer.number])
            assert marks[peer.number] == list(range(count)), "marks are in order, each once"
            assert count >= (peer.must_count if peer.session.gone else peer.marks), f"peer {peer.number} lost a mark"
            if not peer.session.gone:
                answers = [message for message in map(json.loads, frames_of(peer.line.written)) if "id" in message]
                assert [answer["id"] for answer in answers] == peer.requests, "every request is answered, in order"
        self._check_left()

    def _check_left(self) -> None:
        bus, alive = self.bus, [self.owner, *(peer for peer in self.peers if not peer.session.gone)]
        sessions = {peer.session for peer in alive}
        assert set(bus.sessions.values()) == sessions
        assert self.daemon.connections == {peer.connection for peer in alive}
        owners = {element.owner for element in bus.tree.elements.values()} - {bus.builtin.session}
        assert owners <= sessions
        fetching = {audience for session in sessions for audience in session.fetches.values()}
        assert set(bus.fetches.audiences.values()) == fetching
        outboxes = {session.outbox for session in sessions}
        assert {outbox for audience in fetching for outbox in audience.members} <= outboxes
        assert all(route.requester in sessions or route.owner in sessions for route in self._routes())
        assert {session.account.address_name for session in sessions} == set(bus.book.addresses)
        assert sum(level.peers for level in bus.book.addresses.values()) == len(sessions)
        assert self.daemon.inbound.total_bytes == 0
        for peer in self.peers:
            if peer.session.gone:
                assert peer.session.elements == {}
                assert peer.session.fetches == {}
                assert peer.session.routes == {}
                assert peer.session.waiting == []
                assert peer.session.task is None

    def _routes(self) -> Iterator[Any]:
        for session in self.bus.sessions.values():
            yield from session.routes.values()


# Every transition, by what a peer sends and what happens to it.


def _fetch(peer: Peer) -> None:
    number = len(peer.requests)
    peer.request("fetch", {"id": f"f{number}", "path": {"startsWith": f"s/{number % 10}"}})


def _get(peer: Peer) -> None:
    # Peers that ask for the same share an answer; these two do not.
    peer.request("get", {"path": {"contains" if peer.number % 2 else "startsWith": "s/"}})


def _replay(peer: Peer) -> None:
    peer.request("fetch", {"id": "past", "since": 0, "path": {"startsWith": "s/"}})
    peer.ends = True  # the page that cannot be read ends it


ACTS: dict[str, Callable[[Peer], None]] = {
    "a mark": Peer.mark,
    "a long mark": lambda peer: peer.mark(LONG),
    "a longer mark": lambda peer: peer.mark(LONG * 3),
    "an element": lambda peer: peer.request("add", {"path": f"p/{peer.number}/{len(peer.requests)}", "value": 1}),
    "a fetch": _fetch,
    "a get": _get,
    "an echo": lambda peer: peer.request("echo", [1]),
    "an error": lambda peer: peer.request("get", {"path": 7}),
    "a password": lambda peer: peer.request("passwd", {"user": "a", "password": "b"}),
}


class Walked(dict[Cause, Condition]):
    """A row of the table that notes its causes."""

    def __init__(self, row: dict[Cause, Condition], walked: set[Cause]) -> None:
        super().__init__(row)
        self._walked = walked

    def __getitem__(self, cause: Cause) -> Condition:
        self._walked.add(cause)
        return super().__getitem__(cause)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Peers are closed for failures of the tests by the hundred."""
    caplog.set_level(logging.CRITICAL, "jetbus")


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.stop()


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> dict[Condition, set[Cause]]:
    """The causes that have happened, by condition."""
    found: dict[Condition, set[Cause]] = {condition: set() for condition in Condition}
    for condition, row in TRANSITIONS.items():
        monkeypatch.setitem(conditions.TRANSITIONS, condition, Walked(row, found[condition]))
    return found


def _become_ready(_world: World, peer: Peer) -> None:
    peer.mark()
    peer.line.deliver()


def _become_due(world: World, peer: Peer) -> None:
    world.set_patience(False)
    peer.mark("x" * 10_000)
    peer.line.deliver()


def _become_due_with_a_task(world: World, peer: Peer) -> None:
    world.set_patience(False)
    _get(peer)
    peer.line.deliver()


def _become_put_off(_world: World, peer: Peer) -> None:
    _fetch(peer)
    peer.line.deliver()


def _become_awaiting(_world: World, peer: Peer) -> None:
    peer.request("passwd", {"user": "a", "password": "b"})
    peer.line.deliver()


def _await_room(world: World, peer: Peer) -> None:
    world.set_patience(False)
    for one in (world.connect(), peer):
        _get(one)
        one.line.deliver()


def _await_the_past(world: World, peer: Peer) -> None:
    _replay(peer)
    peer.line.deliver()
    _run(world)


def _await_reading(world: World, peer: Peer) -> None:
    _await_the_past(world, peer)
    peer.line.stuck = True
    world.worker.work.popleft()()
    _run(world)


def _become_stalled(world: World, peer: Peer) -> None:
    peer.line.stuck = True
    for _ in range(2):
        _get(peer)
        peer.line.deliver()
        _run(world)


def _run(world: World) -> None:
    for _ in range(3):
        world.loop.run_pass()


REACHED: dict[str, tuple[Callable[[World, Peer], None], Condition]] = {
    "ready": (_become_ready, Condition.READY),
    "due, a message": (_become_due, Condition.DUE),
    "due, a task": (_become_due_with_a_task, Condition.DUE),
    "put off": (_become_put_off, Condition.PUT_OFF),
    "awaiting a service": (_become_awaiting, Condition.AWAITING),
    "awaiting room": (_await_room, Condition.AWAITING),
    "awaiting a thread": (_await_the_past, Condition.AWAITING),
    "stalled, a message": (_become_stalled, Condition.STALLED),
}


@pytest.mark.parametrize("end", [*ENDS, "none"])
@pytest.mark.parametrize(("reach", "condition"), REACHED.values(), ids=REACHED)
def test_a_peer_ends_in_every_condition(
    world: World, reach: Callable[[World, Peer], None], condition: Condition, end: str
) -> None:
    """Wherever a peer ends, with messages behind what it waits for, nothing of it stays, and what it sent counts."""
    peer = world.connect()
    reach(world, peer)
    assert peer.session.condition is condition
    replays, peer.ends = peer.ends, False
    peer.mark()
    peer.line.deliver()
    if end in ENDS:
        ENDS[end](peer)
    if replays:
        peer.ends, peer.must_count = True, 0  # the refused replay drops what is behind it
    world.check()
    assert peer.session.gone is (end != "none" or replays)


def _overflow(world: World) -> None:
    """Let the daemon close a peer while its task makes a step, because the answer is too long for it."""
    flow = world.daemon.flow
    before, flow.hard_bytes = flow.hard_bytes, 1000
    peer = world.connect()
    _get(peer)
    peer.line.deliver()
    peer.ends, flow.hard_bytes = True, before


def _refuse_version(world: World) -> None:
    """Refuse a binary peer of another version by its first message."""
    peer = world.connect(BinaryConnection)
    message = INFO_MESSAGE[:1] + bytes([VERSION[0] + 1]) + INFO_MESSAGE[2:]
    peer.line.sent.append(struct.pack("<I", len(message)) + message)
    peer.ends = True


ABSORBING = (Condition.REFUSED, Condition.CLOSED, Condition.GONE)


def test_every_transition_happens(walked: dict[Condition, set[Cause]]) -> None:
    """The table has no transition that the daemon does not make: all that it names happen here."""
    for end in (None, *ENDS.values()):
        for reach in (*(reach for reach, _ in REACHED.values()), _await_reading):
            world = World()
            peer = world.connect()
            reach(world, peer)
            if end is not None:
                end(peer)
            if end is Peer.close:
                peer.must_count = 0
            world.settle()
            world.stop()
    world = World()
    _overflow(world)
    _refuse_version(world)
    world.settle()
    world.stop()
    missing = {condition: set(row) - walked[condition] for condition, row in TRANSITIONS.items()}
    assert {name: causes for name, causes in missing.items() if causes and name not in ABSORBING} == {}
    assert walked[Condition.REFUSED] >= {Cause.TASK_ENDS, Cause.CLOSE}
    assert Cause.LEAVE in walked[Condition.CLOSED]


# Any order of anything.


class Peers(RuleBasedStateMachine):
    """Peers that send, wait, stop to read and end in any order."""

    @initialize()
    def start(self) -> None:
        self.world = World()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            self.world.stop()

    def _alive(self) -> list[Peer]:
        return [peer for peer in self.world.peers if not peer.ends]

    def _choose(self, number: int) -> Peer:
        alive = self._alive()
        return alive[number % len(alive)]

    @rule()
    def connect(self) -> None:
        if len(self._alive()) < PEERS_MAX:
            self.world.connect()

    @precondition(lambda self: self._alive())
    @rule(number=st.integers(0, PEERS_MAX), acts=st.lists(st.sampled_from(list(ACTS)), min_size=1, max_size=4))
    def send(self, number: int, acts: list[str]) -> None:
        peer = self._choose(number)
        for act in acts:
            ACTS[act](peer)

    @precondition(lambda self: self._alive())
    @rule(number=st.integers(0, PEERS_MAX))
    def replay(self, number: int) -> None:
        peer = self._choose(number)
        if not peer.session.fetches and not peer.requests:
            _replay(peer)

    @rule(number=st.integers(0, 10), at_once=st.booleans())
    def deliver(self, number: int, at_once: bool) -> None:
        peers = self.world.peers
        if not peers:
            return
        line = peers[number % len(peers)].line
        if at_once:  # what was sent one by one is often read together
            data = [part for part in line.sent if part is not None]
            line.sent = deque([b"".join(data), *(part for part in line.sent if part is None)] if data else line.sent)
        line.deliver()

    @rule(patient=st.booleans())
    def set_patience(self, patient: bool) -> None:
        self.world.set_patience(patient)

    @precondition(lambda self: self._alive())
    @rule(number=st.integers(0, PEERS_MAX))
    def stop_reading(self, number: int) -> None:
        self._choose(number).line.stuck = True

    @precondition(lambda self: self._alive())
    @rule(number=st.integers(0, PEERS_MAX))
    def read(self, number: int) -> None:
        self._choose(number).line.unstick()

    @precondition(lambda self: self.world.worker.work)
    @rule()
    def work(self) -> None:
        self.world.worker.work.popleft()()

    @rule(passes=st.integers(1, 4))
    def run(self, passes: int) -> None:
        for _ in range(passes):
            self.world.loop.run_pass()

    @precondition(lambda self: self._alive())
    @rule(number=st.integers(0, PEERS_MAX), end=st.sampled_from(list(ENDS)))
    def end(self, number: int, end: str) -> None:
        ENDS[end](self._choose(number))

    @rule()
    def settle(self) -> None:
        self.world.check()


TestPeers = Peers.TestCase
TestPeers.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=not os.environ.get("JETBUS_TEST_VARY"),
    suppress_health_check=list(HealthCheck),
)
