"""The order in which the daemon serves its connections, and for how long each at a time.

What is read from a connection is handled at once, which is the quickest way. There are two exceptions.

**Long work.** A peer may take ``turn_us_max`` microseconds in one turn; the bus looks at the clock where work may take
long and then lets the rest wait. Connections with a rest, and those that had one a moment ago, are *heavy*. Heavy
connections are served in the order of a queue, between two looks at the sockets, and all together only for one such
time; whoever was not served comes first at the next opportunity. So all others wait for one turn at the most, however
many heavy connections there are:

    sockets    heavy 1      sockets    heavy 2, 3      sockets    heavy 1 ...
    ------------------------------------------------------------------------> time

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

**Fairness around fetches.** Handling at once is not always the order in which messages were sent: epoll names the
connection that was served last before all others, and a read brings what was sent while others were already waiting.
Between two connections nobody notices, except around a fetch. A program that adds by one connection and fetches by
another wants to see what it has added, and one that fetches and then changes wants to see each change.

So for a moment after each fetch and unfetch the daemon is *fair*: what is read is only collected, over two looks at the
sockets, and then handled in turns, one message of each connection, those that were served just before last.

    sent     client: unfetch    owner: add    client: fetch    owner: change, change
    read     client: unfetch, fetch    owner: add, change, change
    handled  client: unfetch    owner: add    client: fetch    owner: change, change
"""

from __future__ import annotations

import asyncio
import logging
import math
from time import monotonic as clock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.daemon.connection import Connection
    from jetbus.daemon.outbox import Flow

log = logging.getLogger("jetbus.connection")

FAIR_S = 0.005
"""Time after a fetch or unfetch during which messages are handled in turns."""
JUST_BEFORE_S = 0.001
"""A connection served no longer ago than that may still head the list that epoll returns; loops count milliseconds."""
LOOKS = 5
"""Passes of the loop until that is over: two until it is read, two until it is handled, and this one."""
HEAVY_S = 1.0
"""Time after its last long turn during which a connection is still heavy."""
NEWCOMERS = 8
"""The queue of heavy connections waits for so many new connections at the most."""
FAIR_TURN_S = 0.005
"""Shortest time that a connection has for messages that are handled in turns: one whose turn ends loses its place in
the order, so this should happen to long work only and not where the machine is busy."""
TOGETHER_TURNS = 2
"""Messages that are handled in turns may take so many turns together before long work waits."""
AT_ONCE_TURNS = 2
"""So many turns all that is handled at once may take while there are heavy connections, before turns are cut short."""
LATE_TURN = 0.25
"""Share of a turn that is left to each connection then."""
LONG_TURNS = 2
"""Work that took more than so many turns makes the queue of heavy connections rest."""
REST_S_MAX = 0.01
"""The longest rest: enough for the requests that others have waited with."""


class Turns:
    """Decides when what was read is handled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bus: Bus, flow: Flow, turn_s: float) -> None:
        self._loop = loop
        self._bus = bus
        self._flow = flow
        self.turn_s = turn_s
        self.fair = False
        """Messages are to be collected."""
        self.handling = False
        """Collected messages are being handled."""
        self.served: Connection | None = None
        """The connection that was served last."""
        self._served_at = 0.0
        self._served_before_at = 0.0
        """The time at which it was served before that; 0 if another one was."""
        self._until = 0.0
        self._scheduled = False
        self._queues: dict[Connection, list[bytes]] = {}
        self._last: set[Connection] = set()
        """Connections that come last in these turns, having been served just before."""
        self._heavy: dict[Connection, None] = {}
        """Heavy connections in the order in which they are served."""
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

    def serve(self, connection: Connection) -> None:
        """Begin the turn of a connection."""
        # The clock is read once a turn, and only here: that is a good part of what a turn with one message costs.
        now = clock()
        self._served_before_at = self._served_at if connection is self.served else 0.0
        self.served, self._served_at = connection, now
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
        return len(self._heavy)

    def defer(self, connection: Connection) -> None:
        """Serve a connection again when it is its turn among the heavy ones."""
        self._heavy.setdefault(connection)
        if not self._heavy_scheduled:
            self._heavy_scheduled = True
            self._loop.call_soon(self._serve_heavy)

    def _serve_heavy(self) -> None:
        """Give heavy connections their turns, as many as fit into the time of one."""
        if self._newcomers_seen < self._newcomers < NEWCOMERS:
            self._newcomers_seen = self._newcomers
            self._loop.call_soon(self._serve_heavy)
            return
        self._newcomers = self._newcomers_seen = 0
        began = clock()
        ends = began + self.turn_s
        waiting, self._heavy = iter(self._heavy), {}
        self._flow.gather()
        for connection in waiting:
            try:
                connection.take_turn(ends)
            except Exception:
                # The others in the queue must not lose their turns with it.
                log.exception("%s is closed: the daemon failed on what it sent", connection.outbox.label)
                connection.outbox.abort()
            # Less than half a turn is not worth beginning with.
            if clock() > ends - self.turn_s / 2:
                break
        self._flow.gathered()
        self._heavy = {**dict.fromkeys(waiting), **self._heavy}
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

    # -- fairness around fetches

    def be_fair(self, *, begins: bool = False) -> None:
        """Handle messages in turns for a moment, because a fetch begins or has ended."""
        self._until = self._loop.time() + FAIR_S
        if not self.fair:
            self.fair = True
            self._loop.call_later(FAIR_S, self._end)
            # It may have been read first although others had sent before, so it comes last in the next turns.
            if self.served is not None and (not begins or self._was_served_again()):
                self._remember({self.served})

    def _was_served_again(self) -> bool:
        """Return True if the connection that was served last was also served just before that."""
        return self._served_at - self._served_before_at <= JUST_BEFORE_S

    def collect(self, connection: Connection, messages: list[bytes]) -> None:
        """Keep what was read until its turn comes; also nothing, for a connection whose fetch has been put off."""
        self._queues.setdefault(connection, []).extend(messages)
        if not self._scheduled:
            self._scheduled = True
            # What is called soon runs before the loop looks at the sockets again, what that calls soon runs after it.
            self._loop.call_soon(self._loop.call_soon, self._handle)

    def take(self, connection: Connection) -> list[bytes]:
        """Remove and return the messages that are kept of a connection that ends."""
        return self._queues.pop(connection, [])

    def _handle(self) -> None:
        """Handle what has been collected: one message of each connection, and again, until all are handled.

        A connection that has used up its time waits among the heavy ones with all that is left of its messages. When
        all together have used ``TOGETHER_TURNS`` turns, long work of any of them waits there.
        """
        queues, self._queues = self._queues, {}
        # A stable sort: those served just before come last, all others keep the order in which they were read.
        order = sorted(queues, key=self._last.__contains__)
        self._remember(set(order))
        self._scheduled, self.handling = False, True
        used_s = dict.fromkeys(order, 0.0)
        turn_s = max(self.turn_s, FAIR_TURN_S)
        ends = clock() + TOGETHER_TURNS * turn_s
        self._flow.gather()
        while order:
            for connection in order:
                queue = queues[connection]
                # A single connection, or one whose time is up, is passed
                # everything: the bus puts the rest in its own queue.
                count = 1 if len(order) > 1 and used_s[connection] <= turn_s else len(queue)
                began = clock()
                connection.handle(queue[:count], left_s=min(turn_s - used_s[connection], ends - began))
                used_s[connection] += clock() - began
                del queue[:count]
            order = [connection for connection in order if queues[connection]]
        self.handling = False
        self._flow.gathered()

    def _remember(self, served: set[Connection]) -> None:
        """Serve these connections last in the next turns, unless the loop is idle before."""
        self._last = served
        self._forget_after(LOOKS, served)

    def _forget_after(self, looks: int, served: set[Connection]) -> None:
        if looks:
            self._loop.call_soon(self._forget_after, looks - 1, served)
        elif self._last is served:
            self._last = set()

    def _end(self) -> None:
        """End the fair moment, unless another fetch came meanwhile or messages wait for their turn."""
        left_s = self._until - self._loop.time()
        if self._scheduled or left_s > 0:
            self._loop.call_later(max(left_s, 0.0), self._end)
        else:
            self.fair = False
