"""The order in which the daemon serves its connections, and for how long each at a time.

What is read from a connection is handled at once, which is the quickest way. There are two exceptions.

**Long work.** A peer may take ``turn_us_max`` microseconds in one turn; the bus looks at the clock where work may take
long and then lets the rest wait. Connections with a rest, and those that had one a moment ago, are *heavy*. Heavy
connections are served in the order of a queue, between two looks at the sockets, and all together only for one such
time; whoever was not served comes first at the next opportunity. So all others wait for one turn at the most, however
many heavy connections there are:

    sockets    heavy 1      sockets    heavy 2, 3      sockets    heavy 1 ...
    ------------------------------------------------------------------------> time

The addresses take turns in this queue, and the connections of one address among themselves: whoever opens three hundred
connections gets no more of the time than another who has one.

Many connections that are not heavy yet could each take a whole turn at once. While there are heavy ones, these take
``AT_ONCE_TURNS`` turns together between two looks at the sockets; those that come later are cut short, and are heavy if
that is not enough for them.

The loop accepts one connection between two looks at the sockets. While others wait to be accepted, the queue therefore
rests, for ``NEWCOMERS`` connections at the most; else each of them would wait for as many turns as there are
connections ahead of it. What a new WebSocket connection sends along, if it is long, waits for its turn in the queue.

To check and decode a long message cannot be cut. A connection that has completed one is therefore heavy, too, so that
many such messages are not handled one after the other between two looks at the sockets.

Work that cannot be cut may exceed its turn. The queue then rests for as long as that took, up to ``REST_S_MAX``, so
that a request of another peer, which needs several looks at the sockets, meets such work only once.

**Order around fetches.** Handling at once is not always the order in which messages were sent: epoll names the
connections that it has named in the look before ahead of all others, and a read brings what was sent while others were
already waiting. Between two connections nobody notices, except around a fetch. A program that adds by one connection
and fetches by another wants to see what it has added, and one that fetches and then changes wants to see each change.

So a fetch is answered only when the sockets have been looked at once more: whatever was sent before it has then been
read, on every connection. What is read meanwhile is collected and handled in three stages: the messages up to the last
``add`` or ``remove`` of each connection, then the fetches, then the changes that follow.

    sent     client: unfetch    owner: add    client: fetch    owner: change, change
    read     client: unfetch, fetch    owner: add, change, change
    handled  client: unfetch    owner: add    client: fetch    owner: change, change

Changes that were certainly read in their order, before the fetch, are handled before it. For a moment after each fetch
everything is collected until the end of the look, because programs of this kind often fetch again. A heavy connection
has no place in this order: its messages and fetches are handled when it is its turn.
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

ORDER_S = 0.005
"""Time after a fetch during which everything is collected until the end of a look at the sockets."""
LOOKS_MAX = 4
"""Fetches wait for so many looks at the sockets at the most, even if each look brings another fetch."""
HEAVY_S = 1.0
"""Time after its last long turn during which a connection is still heavy."""
HEAVY_TURN = 0.5
"""Share of a turn that the rest of its work must need, in processor time, for that."""
NEWCOMERS = 8
"""The queue of heavy connections waits for so many new connections at the most."""
AT_ONCE_TURNS = 2
"""Turns that everything handled at once may take together while there are heavy connections, and everything that was
collected, before further turns are cut short."""
LATE_TURN = 0.25
"""Share of a turn that is left to each connection then."""
LONG_TURNS = 2
"""Work that took more than so many turns makes the queue of heavy connections rest."""
REST_S_MAX = 0.01
"""The longest rest: enough for the requests that others have waited with."""


class Heavy(Protocol):
    """A connection that needs several turns, or work that one has left behind."""

    outbox: SocketOutbox

    @property
    def shares_turns_with(self) -> str:
        """The address whose connections share their turns among the heavy ones."""

    def take_turn(self, ends: float, /) -> None:
        """Go on until the instant ``ends``, and defer what is left to the next turn."""


class Chore:
    """Work that a peer has left behind: to remove its elements, or itself from the audiences of its fetches."""

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
    """Decides when what was read is handled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bus: Bus, flow: Flow, turn_s: float) -> None:
        self._loop = loop
        self._bus = bus
        self._flow = flow
        self.turn_s = turn_s
        self.collecting = False
        """True while messages are collected, because a fetch waits or has been answered a moment ago."""
        self.answering = False
        """Fetches are answered at once: everything sent before them has been read, or their connection is heavy."""
        self._collected: dict[Connection, list[bytes]] = {}
        """Messages that were read, by connections in the order in which these were read."""
        self._unplaced: set[Connection] = set()
        """Connections among them that epoll has named first because they were read in the look before, too."""
        self._read_before: set[Connection] = set()
        """Connections that were read in the look before."""
        self._fetching: list[Connection] = []
        """Connections whose fetch waits."""
        self._fetch_read = False
        """A fetch was read since the last look began."""
        self._looks = 0
        """Looks that the fetches have waited for."""
        self._scheduled = False
        self._handling = False
        self._collects_until = 0.0
        self._heavy: dict[str, dict[Heavy, None]] = {}
        """Heavy connections in the order in which they are served, by addresses in the order of theirs."""
        self._heavy_scheduled = False
        self._at_once_ends = math.inf
        """Instant from which on turns are cut short while there are heavy connections."""
        self._newcomers = 0
        """Connections made since heavy ones were served."""
        self._newcomers_seen = 0
        """Their number at the last look at the queue."""

    def welcome(self) -> None:
        """Count a new connection."""
        self._newcomers += 1

    def serve(self) -> None:
        """Begin the turn of a connection."""
        # The clock is read once a turn, and only here: that is a good part of what a turn with one message costs.
        now = clock()
        bus, turn_s = self._bus, self.turn_s
        bus.now = now
        if self._heavy_scheduled and now + turn_s > self._at_once_ends:
            bus.turn_ends = max(self._at_once_ends, now + turn_s * LATE_TURN)
        else:
            bus.turn_ends = now + turn_s

    # -- long work

    @property
    def heavy_count(self) -> int:
        """Number of connections that wait for their next turn."""
        return sum(map(len, self._heavy.values()))

    def defer(self, connection: Heavy) -> None:
        """Serve a connection again when it is its turn among the heavy ones."""
        self._heavy.setdefault(connection.shares_turns_with, {}).setdefault(connection)
        if not self._heavy_scheduled:
            self._heavy_scheduled = True
            self._loop.call_soon(self._serve_heavy)

    def run_chore(self, session: Session, steps: Iterator[None]) -> None:
        """Do steps that a peer leaves behind, in this turn and then among the heavy connections of its address."""
        Chore(self, session, steps).take_turn(self._bus.turn_ends)

    def _serve_heavy(self) -> None:
        """Give heavy connections their turns, as many as fit into the time of one."""
        if self._newcomers_seen < self._newcomers < NEWCOMERS:
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
            # Less than half a turn is not worth beginning with.
            if clock() > ends - self.turn_s / 2:
                break
        self.collecting, self.answering = collecting, False
        self._flow.gathered()
        self._heavy_scheduled = bool(self._heavy)
        if not self._heavy:
            return
        now = clock()
        if now - began > LONG_TURNS * self.turn_s:
            self._at_once_ends = math.inf  # others have this time for themselves
            self._loop.call_later(min(now - began, REST_S_MAX), self._serve_heavy)
        else:
            self._at_once_ends = now + AT_ONCE_TURNS * self.turn_s
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
        """Answer the fetch of a connection when the sockets have been looked at once more."""
        self._fetching.append(connection)
        if not self._handling:
            self._fetch_read = True
            self._collect_for_a_moment()
            self._schedule()

    def collect(self, connection: Connection, messages: list[bytes]) -> None:
        """Keep messages that were read until the end of this look, or of the next one if there is a fetch."""
        if connection not in self._collected:
            self._collected[connection] = []
            if connection in self._read_before:
                self._unplaced.add(connection)
        self._collected[connection] += messages
        if not self._fetch_read:
            self._fetch_read = any(map(connection.is_fetch, messages))
        self._schedule()

    def take(self, connection: Connection) -> list[bytes]:
        """Remove and return the messages that are kept of a connection that ends."""
        return self._collected.pop(connection, [])

    def _collect_for_a_moment(self) -> None:
        self._collects_until = self._loop.time() + ORDER_S
        if not self.collecting:
            self.collecting = True
            self._loop.call_later(ORDER_S, self._end_collecting)

    def _end_collecting(self) -> None:
        """Handle at once again, unless another fetch came meanwhile or messages are still kept."""
        left_s = self._collects_until - self._loop.time()
        if self._scheduled or left_s > 0:
            self._loop.call_later(max(left_s, 0.0), self._end_collecting)
        else:
            self.collecting = False

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            # What is called soon runs when all that this look has found is read, before the next look.
            self._loop.call_soon(self._end_look)

    def _end_look(self) -> None:
        """Look at the sockets once more if a fetch was read, else handle what has been collected."""
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
        """Forget who was read in a look; the next one is over."""
        if self._read_before is read:
            self._read_before = set()

    def _handle(self) -> None:
        """Handle what has been collected: messages up to the last add, then fetches, then changes.

        A connection that has used up its time waits among the heavy ones with all that is left of its messages. When
        all together have used ``AT_ONCE_TURNS`` turns, long work of any of them waits there.
        """
        collected, self._collected = self._collected, {}
        unplaced, self._unplaced = self._unplaced, set()
        later: list[tuple[Connection, list[bytes]]] = []
        ends = clock() + AT_ONCE_TURNS * self.turn_s
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
            _protect(connection, connection.answer_fetch, ends)
        for connection, messages in later:
            _protect(connection, connection.handle, messages, ends)
        self.answering = self._handling = False
        self.collecting = True
        # Written after one more look, in which epoll forgets who was named in this one: what peers send in response
        # is then named in its order.
        self._loop.call_soon(self._loop.call_soon, self._flow.gathered)
        if fetching:
            self._collect_for_a_moment()


_Arguments = ParamSpec("_Arguments")


def _protect(
    connection: Heavy, serve: Callable[_Arguments, None], *args: _Arguments.args, **options: _Arguments.kwargs
) -> None:
    """Serve a connection; if that fails, it is closed, and the others do not lose their turns with it."""
    try:
        serve(*args, **options)
    except Exception:
        log.exception("%s is closed: the daemon failed on what it sent", connection.outbox.label)
        connection.outbox.abort()
