"""The order in which the daemon serves its connections, and for how long each at a time.

Whatever is read from a connection is handled at once, which is the quickest way. There are two exceptions.

**Long work.** A peer may use ``turn_us_max`` microseconds in one turn. The bus looks at the clock after everything that
may take long, and lets the rest wait. A connection with such a rest is *heavy*, and remains so while the connections of
its address use more than ``HEAVY_SHARE`` of the processor for such rests. A long request now and then is within that
share: a program that fetches a thousand states has its place in the order around fetches, below, as soon as it has
received them. Heavy connections are served in the order of a queue, between two looks at the sockets,
and all of them together get the time of one turn; the next in the queue is first at the next opportunity. So all others
wait for one turn at most, however many heavy connections there are::

    sockets    heavy 1      sockets    heavy 2, 3      sockets    heavy 1 ...
    ------------------------------------------------------------------------> time

The addresses take turns in this queue, and the connections of one address among themselves: three hundred connections
from one address get no more time than a single connection from another.

Many connections that are not heavy yet could each use a whole turn at once. While others are heavy, they use
``TURNS_AT_ONCE`` turns in total between two looks at the sockets. After that each gets a short turn, and is heavy if
that is not enough.

The loop accepts one connection between two looks at the sockets. While connections wait to be accepted, the queue
therefore rests, for up to ``LOOKS_MAX`` looks; otherwise each of them would wait for a turn of the queue for every
connection ahead of it. Long data that follows the handshake of a new WebSocket waits for its turn in the queue.

A long message is checked and decoded in one piece. It therefore waits for its turn in the queue, so that the long
messages of many connections are not handled one after the other between two looks at the sockets.

Work in one piece may exceed its turn. The queue then rests for as long as the work took, up to ``MOMENT_S``: a request
of another peer, which needs several looks at the sockets, meets such work only once.

**Order around fetches.** Messages are not always read in the order in which they were sent: epoll reports connections
that it reported in the look before ahead of all others, and a read returns bytes that were sent while other connections
were already waiting. Between two connections this matters only around a fetch. A program that adds by one connection
and fetches by another expects to see what it has added, and one that fetches and then changes expects to see each
change.

So a fetch is answered after one more look at the sockets: everything sent before it has then been read, on every
connection. Messages that are read meanwhile are collected and handled in three stages: first the messages up to the
last ``add`` or ``remove`` of each connection, then the fetches, then the changes that follow::

    sent     client: unfetch    owner: add    client: fetch    owner: change, change
    read     client: unfetch, fetch    owner: add, change, change
    handled  client: unfetch    owner: add    client: fetch    owner: change, change

Changes that were certainly read in their order, before the fetch, are handled before it. For a moment after each fetch
all messages are collected until the end of the look, because such programs often fetch again. A heavy connection has
no place in this order: its messages and fetches are handled in its turn.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from time import monotonic as clock
from typing import TYPE_CHECKING, ParamSpec, Protocol, cast

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session
    from jetbus.daemon.connection import Connection
    from jetbus.daemon.outbox import Flow, SocketOutbox

log = logging.getLogger("jetbus.connection")

TURNS_AT_ONCE = 2
"""Turns that immediate work may use in total before later turns are shortened, and that heavy work may use in one piece
before the queue rests. One turn would shorten the second of two busy peers; each further turn delays all others."""
SHORT_TURN = 0.25
"""Share of a turn below which serving a connection is not worth its cost: the length of a shortened turn, and the time
that must be left to start with the next heavy connection."""
LOOKS_MAX = 8
"""Looks at the sockets that a fetch or the queue of heavy connections waits for at most, if each look brings another
fetch or connection. The loop accepts one connection a look, so this many peers connect between two turns."""
HEAVY_SHARE = 0.1
"""Share of the processor that the connections of an address may use in the queue without remaining heavy."""
HEAVY_SHARE_S = 0.05
"""Processor time up to which an address can save up its share."""
ADDRESSES_MAX = 1000
"""Addresses after which those that have saved up their whole share are forgotten."""
MOMENT_S = 0.01
"""Time in which a program sends its next message after it has received an answer, with room for a busy machine: for so
long messages are collected after a fetch, and the queue rests after work in one piece."""


class Heavy(Protocol):
    """A connection that needs several turns, or a chore."""

    outbox: SocketOutbox

    @property
    def shares_turns_with(self) -> str:
        """The address whose heavy connections share their turns."""

    def take_turn(self, ends: float, /) -> None:
        """Go on until the instant ``ends``, and defer what is left to the next turn."""


class Chore:
    """Work that remains when a peer has left: removing its elements, and the peer from the audiences of its fetches."""

    def __init__(self, turns: Turns, session: Session, steps: Iterator[None]) -> None:
        self._turns = turns
        self._steps = steps
        self.outbox = cast("SocketOutbox", session.outbox)
        self.shares_turns_with = session.address

    def take_turn(self, ends: float) -> None:
        for _ in self._steps:
            if clock() > ends:
                self._turns.defer(self)
                return


class Turns:
    """The scheduler of all connections: decides when messages that were read are handled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bus: Bus, flow: Flow, turn_s: float) -> None:
        self._loop = loop
        self._bus = bus
        self._serving = bus.serving
        self._flow = flow
        self.turn_s = turn_s
        self.collecting = False
        """True while messages are collected, because a fetch waits or was answered a moment ago."""
        self.answering = False
        """True while fetches are answered at once: all that was sent before them is read, or their peer is heavy."""
        self._collected: dict[Connection, list[bytes]] = {}
        """Messages that were read, by connections in the order in which these were read."""
        self._unplaced: set[Connection] = set()
        """Connections among them that epoll may have reported first because they were read in the last look, too."""
        self._read_before: set[Connection] = set()
        """Connections that were read in the last look."""
        self._fetching: list[Connection] = []
        """Connections whose fetch waits."""
        self._fetch_read = False
        """True if a fetch was read since the last look started."""
        self._looks = 0
        """Number of looks that the fetches have waited for."""
        self._scheduled = False
        self._handling = False
        self._collects_until = 0.0
        self._heavy: dict[str, dict[Heavy, None]] = {}
        """Heavy connections in the order in which they are served, by addresses in the order of theirs."""
        self._heavy_scheduled = False
        self._saved_up_at: dict[str, float] = {}
        """Instants at which addresses will have saved up their whole share of the processor again."""
        self._at_once_ends = math.inf
        """Instant after which turns are shortened while there are heavy connections."""
        self._newcomers = 0
        """Number of connections made since heavy ones were served."""
        self._newcomers_seen = 0
        """The same number when the queue was looked at last."""

    def welcome(self) -> None:
        """Count a new connection."""
        self._newcomers += 1

    def serve(self, latest: float = math.inf) -> None:
        """Start the turn of a connection, which is over at the instant ``latest`` at the latest."""
        # The clock is read once a turn, and only here: that is a good part of what a turn with one message costs.
        bus, turn_s = self._bus, self.turn_s
        bus.now = now = clock()
        ends = now + turn_s
        if self._heavy_scheduled and ends > self._at_once_ends:
            ends = max(self._at_once_ends, now + turn_s * SHORT_TURN)
        self._serving.turn_ends = min(latest, ends)

    def serve_until(self, ends: float) -> None:
        """Start the turn of a heavy connection, which is over at the instant ``ends``."""
        self._bus.now = clock()
        self._serving.turn_ends = ends

    # -- long work

    @property
    def heavy_count(self) -> int:
        """Number of connections that wait for their next turn."""
        return sum(map(len, self._heavy.values()))

    def defer(self, connection: Heavy) -> None:
        """Put a connection at the end of the queue of heavy connections."""
        self._heavy.setdefault(connection.shares_turns_with, {}).setdefault(connection)
        if not self._heavy_scheduled:
            self._heavy_scheduled = True
            self._loop.call_soon(self._serve_heavy)

    def count_use(self, address: str, used_s: float) -> bool:
        """Count processor time used in the queue; return True if the address has used more than its share."""
        now = clock()
        if len(self._saved_up_at) > ADDRESSES_MAX:
            self._saved_up_at = {other: at for other, at in self._saved_up_at.items() if at > now}
        saved_up_at = max(self._saved_up_at.get(address, now), now) + used_s / HEAVY_SHARE
        # A long attack is forgotten as soon as a short one.
        self._saved_up_at[address] = min(saved_up_at, now + 2 * HEAVY_SHARE_S / HEAVY_SHARE)
        return saved_up_at > now + HEAVY_SHARE_S / HEAVY_SHARE

    def run_chore(self, session: Session, steps: Iterator[None]) -> None:
        """Run the steps of a chore in this turn, and the rest among the heavy connections of its address."""
        Chore(self, session, steps).take_turn(self._serving.turn_ends)

    def _serve_heavy(self) -> None:
        """Serve heavy connections, as many as fit into the time of one turn."""
        if self._newcomers_seen < self._newcomers < LOOKS_MAX:
            self._newcomers_seen = self._newcomers
            self._loop.call_soon(self._serve_heavy)
            return
        self._newcomers = self._newcomers_seen = 0
        began = clock()
        ends = began + self.turn_s
        self._flow.gather()
        collecting, self.collecting, self.answering = self.collecting, False, True
        for _ in range(self.heavy_count):
            connection = self._take_heavy()
            _protect(connection, connection.take_turn, ends)
            if clock() > ends - SHORT_TURN * self.turn_s:
                break
        self.collecting, self.answering = collecting, False
        self._flow.gathered()
        self._heavy_scheduled = bool(self._heavy)
        if not self._heavy:
            return
        now = clock()
        if now - began > TURNS_AT_ONCE * self.turn_s:
            self._at_once_ends = math.inf  # others have this time for themselves
            self._loop.call_later(min(now - began, MOMENT_S), self._serve_heavy)
        else:
            self._at_once_ends = now + TURNS_AT_ONCE * self.turn_s
            self._loop.call_soon(self._serve_heavy)

    def _take_heavy(self) -> Heavy:
        """Remove and return the next heavy connection; the next one of its address waits for all other addresses."""
        address = next(iter(self._heavy))
        connections = self._heavy.pop(address)
        connection = next(iter(connections))
        del connections[connection]
        if connections:
            self._heavy[address] = connections
        return connection

    # -- order around fetches

    def put_off(self, connection: Connection) -> None:
        """Answer the fetch of a connection after one more look at the sockets."""
        self._fetching.append(connection)
        if not self._handling:
            self._fetch_read = True
            self._collect_for_a_moment()
            self._schedule()

    def collect(self, connection: Connection, messages: list[bytes]) -> None:
        """Keep messages until the end of this look, or of the next one if there is a fetch among them."""
        if connection not in self._collected:
            self._collected[connection] = []
            if connection in self._read_before:
                self._unplaced.add(connection)
        self._collected[connection] += messages
        if not self._fetch_read:
            self._fetch_read = any(map(connection.is_fetch, messages))
        self._schedule()

    def catch_up(self, connection: Connection) -> None:
        """Handle all that has arrived from a connection, ahead of the others; nothing more will arrive."""
        messages = self._collected.pop(connection, [])
        if connection.session is None or connection.session.condition.is_over:
            return
        # Else messages would be collected, and fetches put off, for a turn that the connection does not live to see.
        before, (self.collecting, self.answering) = (self.collecting, self.answering), (False, True)
        _protect(connection, connection.begin_fetch)
        _protect(connection, connection.handle, messages)
        self.collecting, self.answering = before
        connection.outbox.flush()  # before the transport is closed

    def _collect_for_a_moment(self) -> None:
        self._collects_until = self._loop.time() + MOMENT_S
        if not self.collecting:
            self.collecting = True
            self._loop.call_later(MOMENT_S, self._end_collecting)

    def _end_collecting(self) -> None:
        """Return to immediate handling, unless another fetch was read meanwhile or messages are still collected."""
        left_s = self._collects_until - self._loop.time()
        if self._scheduled or left_s > 0:
            self._loop.call_later(max(left_s, 0.0), self._end_collecting)
        else:
            self.collecting = False

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            # This runs when everything that this look has found is read, before the next look.
            self._loop.call_soon(self._end_look)

    def _end_look(self) -> None:
        """Wait for one more look if a fetch was read, else handle the collected messages."""
        if self._fetch_read and self._looks < LOOKS_MAX:
            self._fetch_read = False
            self._looks += 1
            self._loop.call_soon(self._end_look)
            return
        self._fetch_read, self._looks, self._scheduled = False, 0, False
        self._read_before = set(self._collected)
        self._loop.call_soon(self._forget_look, self._read_before)
        self._handle()

    def _forget_look(self, read: set[Connection]) -> None:
        """Forget the connections that were read in a look, after the next one."""
        if self._read_before is read:
            self._read_before = set()

    def _handle(self) -> None:
        """Handle the collected messages: those up to the last add or remove, then fetches, then changes.

        A connection that has used up its time waits among the heavy ones with the rest of its messages. When all
        connections together have used ``TURNS_AT_ONCE`` turns, further long work waits there.
        """
        collected, self._collected = self._collected, {}
        unplaced, self._unplaced = self._unplaced, set()
        later: list[tuple[Connection, list[bytes]]] = []
        ends = clock() + TURNS_AT_ONCE * self.turn_s
        self.collecting, self._handling = False, True
        self._flow.gather()
        for connection, messages in collected.items():
            changes_at = connection.find_last_changes(messages)
            # Changes alone that were read before any fetch were sent before it.
            if not changes_at and not self._fetching and connection not in unplaced:
                changes_at = len(messages)
            _protect(connection, connection.handle, messages[:changes_at], ends)
            later.append((connection, messages[changes_at:]))
        self.answering = True
        fetching, self._fetching = self._fetching, []
        for connection in fetching:
            _protect(connection, connection.begin_fetch, ends)
        for connection, messages in later:
            _protect(connection, connection.handle, messages, ends)
        self.answering = self._handling = False
        self.collecting = True
        # Written after one more look, in which epoll forgets which connections it reported in this one: messages that
        # peers send in response are then reported in their order.
        self._loop.call_soon(self._loop.call_soon, self._flow.gathered)
        if fetching:
            self._collect_for_a_moment()


_Arguments = ParamSpec("_Arguments")


def _protect(
    connection: Heavy, serve: Callable[_Arguments, None], *args: _Arguments.args, **options: _Arguments.kwargs
) -> None:
    """Serve a connection; close it if that fails, so that the others keep their turns."""
    try:
        serve(*args, **options)
    except Exception:
        log.exception("%s is closed: the daemon failed on what it sent", connection.outbox.label)
        connection.outbox.abort()
