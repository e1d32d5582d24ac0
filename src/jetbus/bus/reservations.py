"""Reservations: paths that stay reserved for their owner's user for a while after the connection is lost.

Without them another peer could take the path of an owner that reconnects, and receive the requests that are meant for
the owner. A rule by path says for how long (``reserve_s``). Reservations end with the daemon.
"""

from __future__ import annotations

from typing import NamedTuple


class Reservation(NamedTuple):
    """The user of a reserved path, and the end of the reservation."""

    user: str
    until: float


class Reservations:
    """The reserved paths of all users."""

    def __init__(self) -> None:
        self._paths: dict[str, Reservation] = {}
        self._next_end = float("inf")
        """Earliest end of a reservation."""

    def __bool__(self) -> bool:
        return bool(self._paths)

    def count(self, now: float) -> int:
        """Return the number of reserved paths, after removing those whose time is over."""
        if now >= self._next_end:
            self._paths = {path: found for path, found in self._paths.items() if found.until > now}
            self._next_end = min((found.until for found in self._paths.values()), default=float("inf"))
        return len(self._paths)

    def reserve(self, path: str, user: str, until: float) -> None:
        """Reserve a path for a user."""
        self._paths[path] = Reservation(user, until)
        self._next_end = min(self._next_end, until)

    def find(self, path: str, now: float) -> Reservation | None:
        """Return the reservation of a path, if its time is not over."""
        found = self._paths.get(path)
        return found if found is not None and found.until > now else None

    def end(self, path: str) -> None:
        """Forget the reservation of a path, if there is one."""
        self._paths.pop(path, None)

    def clear(self) -> None:
        """Forget all reservations."""
        self._paths.clear()
