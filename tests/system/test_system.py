"""The whole system as a state machine: peers of all dialects, reconnects, a journal, a daemon that stops or is killed.

Every value is a number that is used once, so that each event can be told from all others. The model is a dict of paths
to owners and numbers. After each step all of this must hold:

- **Ownership.** A path has one owner. Others are refused when they add, change or remove it. A set reaches its owner,
  whoever that is by now, and nobody else.
- **Order.** Every peer is told what one owner did in the order in which it did it, once.
- **No ghost.** What a peer was told adds up to the model: nothing is there whose owner has gone, and after a start of
  the daemon nothing is there at all.
- **No loss.** Nothing that was acknowledged is missing, neither for a peer that stays connected nor, with
  `journal_fsync = always`, in the journal after any kill.
- **The past.** `get` with `asOf` answers for every remembered instant exactly what was live then, also after kills.

The same steps are tried in every run; JETBUS_TEST_VARY tries others, JETBUS_TEST_EXAMPLES more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from support.crash import read_plainly
from support.daemon import Daemon
from support.dialect_peers import DIALECTS, DialectPeer, Seen

WITHIN_S = 30.0
EXAMPLES, STEPS = int(os.environ.get("JETBUS_TEST_EXAMPLES", "8")), 30
RESTARTS = 2
"""So often a daemon ends in one example."""
LOOKS_BACK = 50

peers = st.integers(0, len(DIALECTS) - 1)
PATHS = ["a", "b", "pump", "tank"]
paths = st.sampled_from(PATHS)


class Live(NamedTuple):
    """A state of the model."""

    owner: int
    number: int


class World:
    """State that outlives an example: the daemon, its journal, and all events that must be in the journal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.numbers = iter(range(1, 1 << 31))
        self.acknowledged: dict[str, list[int]] = defaultdict(list)
        self.seen: list[tuple[int, dict[str, int]]] = []
        self.start()

    def start(self) -> None:
        self.daemon = Daemon.start("--journal", str(self.directory), "--journal-fsync", "always")

    def restart(self, number: signal.Signals) -> None:
        """Let the daemon end by a signal, and start another one."""
        if number is signal.SIGTERM:
            self.daemon.stop()
        else:
            self.daemon.process.kill()
            self.daemon.process.wait()
        self.start()

    def look_back(self, instant: int | str) -> dict[str, int]:
        """Return the numbers that there were at an instant."""
        with self.daemon.connect() as wire:
            return {entry["path"]: entry["value"] for entry in wire.result("get", {"asOf": instant})}


class System(RuleBasedStateMachine):
    """Steps of the peers and of the daemon, each followed by a comparison with the model."""

    world: World
    """Set by the test for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Live] = {}
        self.expected: list[list[tuple[int, Seen]]] = [[] for _ in DIALECTS]
        self.restarts = 0

    @initialize()
    def connect_all(self) -> None:
        self.world.daemon.await_empty()
        self._connect_all()

    # -- steps

    @rule(peer=peers, path=paths)
    def add(self, peer: int, path: str) -> None:
        number = next(self.world.numbers)
        assert self.peers[peer].add(path, number) == (path not in self.live)
        if path not in self.live:
            self._note(peer, "add", path, number)

    @rule(peer=peers, path=paths)
    def change(self, peer: int, path: str) -> None:
        number, mine = next(self.world.numbers), self._owns(peer, path)
        assert self.peers[peer].change(path, number) == mine
        if mine:
            self._note(peer, "change", path, number)

    @rule(path=paths)
    def change_by_owner(self, path: str) -> None:
        if path in self.live:
            self.change(self.live[path].owner, path)

    @rule(seed=st.integers(0, 1 << 16))
    def change_all_at_once(self, seed: int) -> None:
        """All owners send changes without waiting for each other."""
        chance = random.Random(seed)
        for path in chance.choices(list(self.live), k=20) if self.live else ():
            owner, number = self.live[path].owner, next(self.world.numbers)
            self.peers[owner].send_change(path, number)
            self._note(owner, "change", path, number)

    @rule(peer=peers, path=paths)
    def remove(self, peer: int, path: str) -> None:
        mine = self._owns(peer, path)
        assert self.peers[peer].remove(path) == mine
        if mine:
            self._note(peer, "remove", path, None)

    @rule(peer=peers, path=paths)
    def set(self, peer: int, path: str) -> None:
        """The owner gets the request, changes the state, and answers."""
        number = next(self.world.numbers)
        answered = self.peers[peer].send_set(path, number)
        if path not in self.live:
            assert not answered()
            return
        owner = self.live[path].owner
        request = self.peers[owner].receive_request()
        assert (request.path, request.number) == (path, number)
        assert self.peers[owner].change(path, number)
        request.succeed()
        assert answered()
        self._note(owner, "change", path, number)

    @rule(peer=peers)
    def reconnect(self, peer: int) -> None:
        """Reconnect a peer: its elements are removed, and its fetches begin anew."""
        self.peers[peer].close()
        self.expected[peer].clear()
        for path in [path for path, live in self.live.items() if live.owner == peer]:
            self._note(peer, "remove", path, None, besides=peer)
        self._await_same(besides=peer)
        self.peers[peer] = DIALECTS[peer](self.world.daemon)
        first = [Seen("add", path, live.number) for path, live in self.live.items()]
        assert Counter(self._receive(peer, len(first))) == Counter(first)

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        """The daemon ends, with warning or without; the bus is empty then."""
        if self.restarts == RESTARTS:
            return
        self.restarts += 1
        self.world.restart(signal.SIGKILL if kill else signal.SIGTERM)
        for peer in self.peers:
            peer.close()
        self.live.clear()
        self.expected = [[] for _ in DIALECTS]
        self._connect_all()

    @rule(seed=st.integers(0, 1 << 16))
    def look_back(self, seed: int) -> None:
        """Compare the tree at an instant of any earlier example or life with what it was then."""
        if self.world.seen:
            instant_us, numbers = random.Random(seed).choice(self.world.seen)
            assert self.world.look_back(instant_us) == numbers

    @rule()
    def look_at_now(self) -> None:
        assert self.world.look_back("now") == self._numbers()

    # -- what always holds

    @invariant()
    def nothing_else_is_told(self) -> None:
        """Every peer is told what the model expects, and the instant is remembered."""
        self._await_same()
        self.world.seen.append((time.time_ns() // 1000, self._numbers()))

    def teardown(self) -> None:
        for peer in getattr(self, "peers", ()):
            peer.close()
        self.world.daemon.check()

    def _connect_all(self) -> None:
        """Connect a peer of each dialect; to begin with, each owns a state."""
        self.peers: list[DialectPeer] = [connect(self.world.daemon) for connect in DIALECTS]
        for peer, path in enumerate(PATHS):
            self.add(peer, path)

    # -- the model

    def _owns(self, peer: int, path: str) -> bool:
        return path in self.live and self.live[path].owner == peer

    def _numbers(self) -> dict[str, int]:
        return {path: live.number for path, live in self.live.items()}

    def _note(self, owner: int, event: str, path: str, number: int | None, besides: int | None = None) -> None:
        """Note what has happened: everybody, but one that is away, is told of it."""
        for peer, expected in enumerate(self.expected):
            if peer != besides:
                expected.append((owner, Seen(event, path, number)))
        if number is None:
            del self.live[path]
        else:
            self.live[path] = Live(owner, number)
            self.world.acknowledged[path].append(number)

    def _await_same(self, besides: int | None = None) -> None:
        """Compare what every peer was told with what it must be told; what is on its way may still arrive."""
        for peer in (peer for peer in range(len(DIALECTS)) if peer != besides):
            expected, self.expected[peer] = self.expected[peer], []
            received = self._receive(peer, len(expected))
            assert Counter(received) == Counter(seen for _, seen in expected)
            for owner in range(len(DIALECTS)):
                mine = [seen for by, seen in expected if by == owner]
                assert [seen for seen in received if seen in mine] == mine

    def _receive(self, peer: int, count: int) -> list[Seen]:
        """Return what a peer is told, once there are so many events and no further ones are on their way."""
        received: list[Seen] = []
        deadline = time.monotonic() + WITHIN_S
        while len(received) < count and time.monotonic() < deadline:
            received += self.peers[peer].receive_events()
        return received + self.peers[peer].receive_events()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "journal")
    yield made
    made.daemon.stop()


def test_the_whole_system(world: World) -> None:
    """Whatever peers and daemon do, ownership, order, no ghost, no loss and the past hold."""
    System.world = world
    run_state_machine_as_test(
        System,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize="JETBUS_TEST_VARY" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    world.restart(signal.SIGKILL)
    for instant_us, numbers in random.Random(EXAMPLES).sample(world.seen, min(len(world.seen), LOOKS_BACK)):
        assert world.look_back(instant_us) == numbers
    world.restart(signal.SIGTERM)
    recorded: dict[str, list[int]] = defaultdict(list)
    for event in read_plainly(world.directory):
        if event["event"] in ("add", "change") and event["path"] in world.acknowledged:
            recorded[event["path"]].append(json.loads(event["value"]))
    assert recorded == world.acknowledged
