"""The order in which messages of several connections are handled, where it shows.

What is read from a connection is handled at once, which is the quickest way. It is not always the order in which
messages were sent: epoll names the connection that was served last before all others, and a read brings what was sent
while others were already waiting. Between two connections nobody notices, except around a fetch. A program that adds by
one connection and fetches by another wants to see what it has added, and one that fetches and then changes wants to see
each change.

So for a moment after each fetch and unfetch the daemon is *fair*: what is read is only collected, over two looks at the
sockets, and then handled in turns, one message of each connection, those that were served just before last.

    sent     client: unfetch    owner: add    client: fetch    owner: change, change
    read     client: unfetch, fetch    owner: add, change, change
    handled  client: unfetch    owner: add    client: fetch    owner: change, change
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetbus.daemon.connection import Connection

FAIR_S = 0.005
"""How long after a fetch or unfetch messages are handled in turns."""
JUST_BEFORE_S = 0.001
"""Who was served no longer ago than that may stand at the head of what epoll names; loops count milliseconds."""
LOOKS = 5
"""How many looks at the sockets later that is over: two until it is read, two until it is handled, and this one."""


class Turns:
    """Decides when what was read is handled."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, gather: Callable[[], None], gathered: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._gather = gather
        self._gathered = gathered
        self.fair = False
        """Messages are to be collected."""
        self.handling = False
        """Collected messages are being handled."""
        self.served: Connection | None = None
        """The connection that was served last."""
        self._served_at = 0.0
        self._served_again = False
        """Whether it was served just before that, too."""
        self._until = 0.0
        self._scheduled = False
        self._queues: dict[Connection, list[bytes]] = {}
        self._last: set[Connection] = set()
        """Who comes last in its turns, having been served just before."""

    def serve(self, connection: Connection) -> None:
        """Messages of a connection are about to be handled."""
        now = self._loop.time()
        self._served_again = connection is self.served and now - self._served_at <= JUST_BEFORE_S
        self.served, self._served_at = connection, now

    def be_fair(self, *, begins: bool = False) -> None:
        """A fetch begins or has ended: handle messages in turns for a moment."""
        self._until = self._loop.time() + FAIR_S
        if not self.fair:
            self.fair = True
            self._loop.call_later(FAIR_S, self._end)
            if self.served is not None and (self._served_again or not begins):
                self._remember({self.served})

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
        """Handle what has been collected: one message of each connection, and again, until all are handled."""
        queues, self._queues = self._queues, {}
        order = sorted(queues, key=self._last.__contains__)
        self._remember(set(order))
        self._scheduled, self.handling = False, True
        self._gather()
        while order:
            for connection in order:
                queue = queues[connection]
                count = 1 if len(order) > 1 else len(queue)
                connection.handle(queue[:count])
                del queue[:count]
            order = [connection for connection in order if queues[connection]]
        self.handling = False
        self._gathered()

    def _remember(self, served: set[Connection]) -> None:
        """These come last in the next turns, unless the loop rests before."""
        self._last = served
        self._forget_after(LOOKS, served)

    def _forget_after(self, looks: int, served: set[Connection]) -> None:
        if looks:
            self._loop.call_soon(self._forget_after, looks - 1, served)
        elif self._last is served:
            self._last = set()

    def _end(self) -> None:
        """The moment is over, unless another fetch came meanwhile or messages wait for their turn."""
        left_s = self._until - self._loop.time()
        if self._scheduled or left_s > 0:
            self._loop.call_later(max(left_s, 0.0), self._end)
        else:
            self.fair = False
