"""Two buses that are given the same bytes: one with the compiled lane, one where Python handles every message.

Whatever peers receive, and whatever the buses store and record, has to be equal. A *script* says what happens: bytes
from a peer, cut anywhere and handled in turns of any length, peers that stop reading and go on, and the end of a turn
of the event loop.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from jetbus.bus.bus import Bus
from jetbus.bus.conditions import DUE, READY
from jetbus.daemon.outbox import Flow, SocketOutbox
from jetbus.wire.framing import STREAM, WEBSOCKET, StreamDecoder
from jetbus.wire.lane import PlainLane
from support.inmemory import LENGTH, IdleLoop, MemoryTransport

BYTES_MAX = 5_000
SOFT_BYTES, HARD_BYTES = 300, 20_000
WEBSOCKETS = (2,)
"""Peers that receive WebSocket frames; what they send comes as messages that were cut already."""
PEERS = 4

Step = tuple[Any, ...]
"""("send", peer, bytes, looks at the clock in a turn), ("pause", peer), ("resume", peer) or ("flush",)."""


class Record:
    """A journal in memory. As a journal with densities has it, ``rows`` may be None."""

    now_us = missed = 0

    def __init__(self, has_rows: bool) -> None:
        self.all: list[Any] = []
        self.rows = self.all if has_rows else None

    def note(self, row: tuple[str, bytes, str], /) -> None:
        self.all.extend(row)

    def find_last(self) -> None:
        """Return None: every event counts as committed."""

    def append(self, *event: Any) -> None:
        self.all.append(event)

    def append_described(self, *event: Any) -> None:
        self.all.append(event)


class Side:
    """A bus with its peers."""

    def __init__(self, is_compiled: bool, record: str = "") -> None:
        self._ticks = 0.0
        self.flow = Flow(IdleLoop(), SOFT_BYTES, HARD_BYTES, Counter())
        self.bus = bus = Bus(clock=self._tick)
        if not is_compiled:
            bus.lane = PlainLane(bus.intake.read_in_python, bus.serving.clock)
        if record:
            bus.record = Record(record == "rows")
        self.transports = [MemoryTransport() for _ in range(PEERS)]
        self.decoders = [StreamDecoder(BYTES_MAX) for _ in range(PEERS)]
        self.outboxes = [SocketOutbox(transport, self.flow) for transport in self.transports]
        self.sessions = []
        for number, outbox in enumerate(self.outboxes):
            session = bus.connect(outbox, WEBSOCKET if number in WEBSOCKETS else STREAM)
            outbox.audiences = session.fetches.values()
            outbox.has_session = True
            self.sessions.append(session)

    def _tick(self) -> float:
        self._ticks += 1
        return self._ticks

    def play(self, step: Step) -> None:
        """Let one step happen."""
        kind, *given = step
        if kind == "send":
            self._send(*given)
        elif kind == "flush":
            self.flow.flush()
        elif not self.outboxes[given[0]].closed:
            getattr(self.outboxes[given[0]], kind)()

    def _send(self, number: int, data: bytes, looks: int) -> None:
        bus, session, decoder = self.bus, self.sessions[number], self.decoders[number]
        serving = bus.serving
        serving.turn_ends = self._ticks + looks
        if number in WEBSOCKETS:
            bus.receive(session, decoder.feed(data), 0.0)
            data = b""
        else:
            data = decoder.join(data)
            data = data[bus.receive_stream(session, data, 0.0, bytes_max=BYTES_MAX) :]
        while session.condition is DUE:
            serving.turn_ends = self._ticks + looks
            bus.receive(session, serving.next_turn(session), 0.0)
            if session.condition is READY:
                data = data[bus.receive_stream(session, data, 0.0, bytes_max=BYTES_MAX) :]
        if session.condition is READY:
            decoder.keep(data, 0)
        else:
            serving.hold_back(session, decoder.feed(data))

    def shown(self) -> dict[str, Any]:
        """All that can be seen from outside, and what the bus keeps."""
        self.flow.flush()
        bus, record = self.bus, self.bus.record
        return {
            "sent": [transport.written for transport in self.transports],
            "stored": [
                (one.path, one.value, one.room, one.number, len(one.audiences)) for one in bus.tree.elements.values()
            ],
            "recorded": record.all if isinstance(record, Record) else None,
            "routes": [sorted(session.routes) for session in self.sessions],
            "conditions": [session.condition for session in self.sessions],
            "kept": bus.book.all.kept_bytes,
            "received": bus.received,
            "limits": {name: hits for name, hits in bus.limit_hits.items() if name != "turn_us_max"},
            "unfinished": [decoder.pending_bytes for decoder in self.decoders],
        }


def framed(*texts: str | bytes) -> bytes:
    """Return texts as frames of a stream."""
    messages = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(LENGTH.pack(len(message)) + message for message in messages)


def play(steps: list[Step], record: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Let both buses do the same; return what they show, the compiled one first."""
    sides = Side(True, record), Side(False, record)
    for side in sides:
        for step in steps:
            side.play(step)
    return sides[0].shown(), sides[1].shown()
