"""Reservations: paths that stay reserved for their owner's user for a while after the connection is lost.

Without them another peer could take the path of an owner that reconnects, and receive the requests that are meant for
the owner. A rule by path says for how long (``reserve_s``). Reservations end with the daemon.

Each user has a number of reservations of its own, so that nobody can use up those of another user, and a reservation
ends only when its user is back or its time is over.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Reservation(NamedTuple):
    """The user of a reserved path, and the end of the reservation."""

    user: str
    until: float


class Reservations:
    """The reserved paths of all users."""

    def __init__(self) -> None:
        self._paths: dict[str, Reservation] = {}
        self._counts: Counter[str] = Counter()
        """Number of reserved paths of each user."""
        self._next_end = float("inf")
        """Earliest end of a reservation."""

    def __bool__(self) -> bool:
        return bool(self._paths)

    def count(self, now: float) -> int:
        """Return the number of reserved paths, after removing those whose time is over."""
        if now >= self._next_end:
            self._paths = {path: found for path, found in self._paths.items() if found.until > now}
            self._counts = Counter(found.user for found in self._paths.values())
            self._next_end = min((found.until for found in self._paths.values()), default=float("inf"))
        return len(self._paths)

    def count_of(self, user: str, now: float) -> int:
        """Return the number of paths that are reserved for a user."""
        self.count(now)
        return self._counts[user]

    def reserve(self, path: str, user: str, until: float) -> None:
        """Reserve a path, which nobody else has reserved, for a user."""
        self.end(path)
        self._paths[path] = Reservation(user, until)
        self._counts[user] += 1
        self._next_end = min(self._next_end, until)

    def find(self, path: str, now: float) -> Reservation | None:
        """Return the reservation of a path, if its time is not over."""
        found = self._paths.get(path)
        return found if found is not None and found.until > now else None

    def end(self, path: str) -> None:
        """Forget the reservation of a path, if there is one."""
        found = self._paths.pop(path, None)
        if found is not None:
            self._counts[found.user] -= 1

    def clear(self) -> None:
        """Forget all reservations."""
        self._paths.clear()
        self._counts.clear()
