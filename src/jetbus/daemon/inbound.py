"""Bytes that the daemon has read and cannot handle yet: unfinished messages, and messages that wait for their turn.

Each connection may hold one message of ``message_bytes_max``. So that many connections cannot fill the memory, there is
a limit for the connections of one address, and one for all of them. If a limit is crossed, one of the connections that
hold at least half the average is closed, not one with a few bytes that wait behind those of others. Of these it
is the one that has made no progress for the longest time: one that announces a long message and does not send it is
found before one that is busy sending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetbus.bus.account import Account
    from jetbus.daemon.config import Config
    from jetbus.daemon.connection import Connection


class Inbound:
    """Counts inbound bytes by connection and address, and closes connections where there are too many."""

    def __init__(self, config: Callable[[], Config], limit_hits: Counter[str]) -> None:
        self._config = config
        self._limit_hits = limit_hits
        self._by_connection: dict[Connection, int] = {}
        """Connections in the order of their last progress, the longest ago first."""
        self._charged: dict[Connection, tuple[Account, int]] = {}
        """Bytes as the accounts of their peers have them."""
        self._by_host: Counter[str] = Counter()
        self.total_bytes = 0

    def note(self, connection: Connection, held_bytes: int) -> None:
        """Count the bytes that a connection holds now; close another one, or this one, if that is too much."""
        # Taken out and put back in: a dict keeps its order, so the connection moves to the end.
        more = held_bytes - self._by_connection.pop(connection, 0)
        host = connection.host
        self.total_bytes += more
        self._by_host[host] += more
        self._charge(connection, held_bytes)
        if held_bytes:
            self._by_connection[connection] = held_bytes
        elif not self._by_host[host]:
            del self._by_host[host]
        config = self._config()
        # The address first: one host with many connections should not cost others theirs.
        while self._by_host[host] > config.inbound_address_bytes_max:
            held = {one: size for one, size in self._by_connection.items() if one.host == host}
            self._close(_choose(held), "inbound_address_bytes_max", config.inbound_address_bytes_max)
        while self.total_bytes > config.inbound_bytes_max:
            self._close(_choose(self._by_connection), "inbound_bytes_max", config.inbound_bytes_max)

    def _charge(self, connection: Connection, held_bytes: int) -> None:
        """Count the bytes that a connection holds in the account of its peer, if it has one already."""
        if connection in self._charged:
            account, before_bytes = self._charged.pop(connection)
            account.note(-before_bytes)
        if held_bytes and connection.session is not None:
            self._charged[connection] = connection.session.account, held_bytes
            connection.session.account.note(held_bytes)

    def _close(self, connection: Connection, limit: str, allowed: int) -> None:
        self._limit_hits[limit] += 1
        held_bytes = self._by_connection[connection]
        self.forget(connection)
        connection.close_for(
            f"{held_bytes} bytes of this connection wait to be completed or handled, and {limit} = {allowed} is reached"
        )

    def forget(self, connection: Connection) -> None:
        """Count a connection no longer."""
        held_bytes = self._by_connection.pop(connection, 0)
        self._charge(connection, 0)
        self.total_bytes -= held_bytes
        self._by_host[connection.host] -= held_bytes
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]


def _choose(held: dict[Connection, int]) -> Connection:
    """Return the first connection that holds at least half the average."""
    enough = sum(held.values()) / len(held) / 2
    return next(connection for connection, size in held.items() if size >= enough)
