"""The time that connections get: one by one, together, and while others need many turns."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from jetbus.daemon.config import Config
from jetbus.daemon.connection import StreamConnection
from jetbus.daemon.daemon import Daemon
from jetbus.daemon.turns import SHORT_TURN, TURNS_AT_ONCE
from support.inmemory import MemoryTransport

NOWHERE: dict[str, Any] = {"tcp": None, "ws": None, "unix": None, "binary": None, "binary_unix": None}


class Open(MemoryTransport):
    """A transport from which reading can stop and go on."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Heavy(StreamConnection):
    """A connection that always wants another turn, and notes when each ends."""

    def __init__(self, daemon: Daemon, ends: list[float], work_s: float = 0.0) -> None:
        super().__init__(daemon, "tcp")
        self._ends = ends
        self._work_s = work_s
        self.connection_made(Open())
        daemon.turns.defer(self)

    def take_turn(self, ends: float) -> None:
        self._ends.append(ends)
        super().take_turn(ends)
        _work(self._work_s)
        self._turns.defer(self)


def _work(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_heavy_connections_share_one_turn() -> None:
    """Connections that need many turns have to be done with theirs at the same instant, however many there are."""

    async def run() -> list[float]:
        daemon = Daemon(Config(**NOWHERE, turn_us_max=1_000_000_000))
        ends: list[float] = []
        for _ in range(3):
            Heavy(daemon, ends)
        while not ends:
            await asyncio.sleep(0)
        return ends[:3]

    first, *others = asyncio.run(run())
    assert others == [first, first]


class Named(Heavy):
    """A heavy connection of an address, which notes its own turns by name."""

    def __init__(self, daemon: Daemon, name: str, turns: list[str]) -> None:
        self._name = name
        self._named_turns = turns
        super().__init__(daemon, [], work_s=0.002)

    @property
    def shares_turns_with(self) -> str:
        return self._name[0]

    def take_turn(self, ends: float) -> None:
        self._named_turns.append(self._name)
        super().take_turn(ends)


def test_addresses_take_turns() -> None:
    """An address with many heavy connections gets no more turns than one with a single connection."""

    async def run() -> list[str]:
        daemon = Daemon(Config(**NOWHERE, turn_us_max=1))
        turns: list[str] = []
        for name in ("a1", "a2", "a3", "b1"):
            Named(daemon, name, turns)
        async with asyncio.timeout(60):
            while len(turns) < 8:
                await asyncio.sleep(0)
        return turns[:8]

    assert asyncio.run(run()) == ["a1", "b1", "a2", "b1", "a3", "b1", "a1", "b1"]


def test_an_owner_leaves_in_turns() -> None:
    """While an owner of many states leaves, another peer is served between two of them, and all are removed."""

    async def run() -> tuple[int, int]:
        daemon = Daemon(Config(**NOWHERE, turn_us_max=1))
        owner, other = StreamConnection(daemon, "tcp"), StreamConnection(daemon, "tcp")
        for connection in (owner, other):
            connection.connection_made(Open())
        assert owner.session is not None
        for number in range(500):
            owner.data_received(_frame(b'{"method":"add","params":{"path":"p%d","value":1}}' % number))
        owner.connection_lost(None)
        other.data_received(_frame(b'{"method":"add","params":{"path":"q","value":1}}'))
        meanwhile = daemon.bus.element_count
        async with asyncio.timeout(60):
            while daemon.bus.departing:
                await asyncio.sleep(0)
        return meanwhile, daemon.bus.element_count

    meanwhile, after = asyncio.run(run())
    assert meanwhile > 400
    assert after == 1


def _frame(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def test_all_that_is_handled_at_once_shares_some_turns() -> None:
    """A peer that comes late between two looks at the sockets gets a short turn while there are heavy connections."""
    turn_s = 0.005

    async def run() -> list[float]:
        daemon = Daemon(Config(**NOWHERE, turn_us_max=int(turn_s * 1e6)))

        def measure_turn() -> float:
            daemon.turns.serve()
            return daemon.bus.serving.turn_ends - daemon.bus.now

        alone_s = measure_turn()
        Heavy(daemon, [])
        late_s = alone_s
        # A machine that stops this process in the middle of a turn makes heavy connections rest, which cuts no turn.
        while late_s > turn_s / 2:
            await asyncio.sleep(0)
            _work(TURNS_AT_ONCE * turn_s)
            late_s = measure_turn()
        return [alone_s, late_s]

    assert asyncio.run(run()) == pytest.approx([turn_s, turn_s * SHORT_TURN])


def test_heavy_connections_rest_after_long_work() -> None:
    """Work that could not be cut is followed by passes of the loop in which no heavy connection is served."""

    async def run() -> int:
        daemon = Daemon(Config(**NOWHERE, turn_us_max=1))
        ends: list[float] = []
        Heavy(daemon, ends, work_s=0.01)
        passes = 0
        while len(ends) < 5:
            passes += 1
            await asyncio.sleep(0)
        return passes

    assert asyncio.run(run()) > 10


class Interrupted(StreamConnection):
    """A connection whose turn is over although it has done nothing: another process had the processor meanwhile."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon, "tcp")
        self.connection_made(Open())

    def cut(self, message: bytes) -> None:
        """Receive a message in a turn that is over from the start."""
        self.handle([message], ends=0.0)


ECHO = b'{"id":1,"method":"echo","params":[]}'
LONG_ECHO = b'{"id":2,"method":"echo","params":["%b"]}' % (b"x" * 2000)
CUT_WORK = {
    "nothing is left": (ECHO, False),
    "a rest that takes a moment": (LONG_ECHO, False),
    "a rest that takes a turn": (b"[" + b",".join([LONG_ECHO] * 3000) + b"]", True),
}


@pytest.mark.parametrize(("message", "heavy"), CUT_WORK.values(), ids=CUT_WORK)
def test_a_busy_machine_makes_no_connection_heavy(message: bytes, heavy: bool) -> None:
    """A connection stays heavy only if the rest of its work took long; one whose turn was interrupted does not."""

    async def run() -> tuple[bool, int]:
        daemon = Daemon(Config(**NOWHERE, turn_us_max=2000))
        connection = Interrupted(daemon)
        connection.cut(message)
        async with asyncio.timeout(60):
            while daemon.turns.heavy_count:
                await asyncio.sleep(0)
        daemon.flow.flush()
        return connection.is_heavy, connection.transport.written.count(b'"result"')  # type: ignore[attr-defined]

    assert asyncio.run(run()) == (heavy, message.count(b"echo"))
