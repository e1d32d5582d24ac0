"""Permissions: the users of the bus, their rights by path, and the paths that are reserved for them.

``rights`` has the rules of a users file, ``access`` the lists of an element. Here they are put into force: an ``add``
is checked against them, and new users or rules take effect at once, also for connected peers and their fetches.

A path stays reserved for its owner's user for a while after the connection is lost. Otherwise another peer could take
the path of an owner that reconnects, and receive the requests that are meant for the owner. A rule by path says for how
long (``reserve_s``). Each user has a number of reservations of its own, so that no user can use up those of another
one, and a reservation ends only when its user is back or its time is over. Reservations end with the daemon.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from jetbus.bus.access import Access, Auth, ruled
from jetbus.bus.rights import PathRules
from jetbus.errors import AddNotAllowed, Reserved

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.ports import Users
    from jetbus.bus.tree import Element


class Permissions:
    """The users of the bus, and the rights that the rules give to their groups."""

    def __init__(self, bus: Bus, users: Users | None) -> None:
        self._bus = bus
        self.users = users
        self.rules: PathRules | None = users.path_rules if users is not None else None
        """Rights by path, None if the users file is without rules."""
        self.reservations = Reservations()

    def check_add(self, element: Element, now: float) -> None:
        """Raise if the owner of an element may not add it."""
        path, auth = element.path, element.owner.auth
        if self.rules is not None and not self.rules.rights(path).may_add(auth):
            raise AddNotAllowed(path, auth.user, auth.add_groups) if auth else AddNotAllowed(path, None)
        reservation = self.reservations.find(path, now)
        if reservation is not None and (auth is None or auth.user != reservation.user):
            raise Reserved(path, reservation.until - now)

    def reserve(self, element: Element, now: float) -> None:
        """Reserve the path of an element for the user of its owner, after a lost connection, if a rule says so."""
        rules, auth = self.rules, element.owner.auth
        seconds = rules.reserve_s(element.path, auth) if rules is not None and rules.reserves and auth else 0.0
        if not seconds or auth is None:
            return
        if self.reservations.count_of(auth.user, now) >= self._bus.limits.reservations_max:
            self._bus.limit_hits["reservations_max"] += 1
        else:
            self.reservations.reserve(element.path, auth.user, now + seconds)

    def use(self, users: Users | None) -> None:
        """Put other users and rules into force, at once and also for peers that are connected and their fetches."""
        bus, rules = self._bus, users.path_rules if users is not None else None
        renewed: dict[Auth, Auth | None] = {}
        for session in bus.sessions.values():
            auth = session.auth
            if auth is not None and auth not in renewed:
                renewed[auth] = users.auth_of(auth.user) if users is not None else None
        renewed = {auth: new for auth, new in renewed.items() if new != auth}
        unruled = self.rules is None and rules is None
        self.users, self.rules = users, rules
        if rules is None or not rules.reserves:
            self.reservations.clear()
        if unruled and not renewed:
            return
        # There may be a million elements, but there are few different
        # accesses, and a user sees all elements of one alike.
        groups: dict[tuple[Access | None, Access | None, bool], list[Element]] = {}
        for element in bus.tree.elements.values():
            access = element.access if unruled else ruled(element.access, element.path, rules)
            groups.setdefault((element.access, access, element.is_method), []).append(element)
        bus.preparations.void()
        bus.fetches.renew(groups, renewed)
        for session in bus.sessions.values():
            if session.auth is not None and session.auth in renewed:
                session.auth = renewed[session.auth]


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

    def count(self, now: float) -> int:
        """Return the number of reserved paths, after removing those that have run out."""
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
        """Reserve a path, which no other user has reserved, for a user."""
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
