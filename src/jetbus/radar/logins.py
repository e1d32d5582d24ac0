"""Logins of browsers: the user of each cookie, and the past that each of them may see.

A browser that logs in gets a random token in a cookie that no script can read and that no other site makes it send.
Behind the token is the user's login to the daemon: tabs with this cookie connect with it, so that the daemon itself
applies the rights of the user. Passwords stay in the memory of this process, since peers need them to come back after a
loss, and go when the user logs out, when the login was not used for ``IDLE_S``, or with the process.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from jetbus.errors import JetError
from jetbus.journal import JournalError
from jetbus.radar.archive import Archive
from jetbus.radar.history import ArchiveHistory
from jetbus.radar.mirror import BusMirror, Onlooker

log = logging.getLogger("jetbus.radar")

COOKIE = "radar_login"
LOGINS_MAX = 1_000
"""Logins that are remembered; beyond that the one that was used longest ago is forgotten."""
IDLE_S = 12 * 3600.0
RETRY_S = 2.0
"""Time after which a journal that could not be opened is tried again."""


class NoHistory(Exception):
    """There is no journal for this user; the text says why, and ``cause`` is the error of the last attempt."""

    def __init__(self, text: str, cause: Exception | None) -> None:
        super().__init__(text)
        self.cause = cause


class HistorySource:
    """The past for one user: opened when it is first asked for, and tried again later if that fails."""

    def __init__(self, open_archive: Callable[[], Archive]) -> None:
        self._open_archive = open_archive
        self._history: ArchiveHistory | None = None
        self._problem: Exception | None = None
        # The first attempt must not wait, not even right after the start of the machine, when the clock is near 0.
        self._tried_at = -RETRY_S
        self._lock = threading.Lock()

    def get(self) -> ArchiveHistory:
        """Return the past; blocks while its journal is opened. Raises ``NoHistory``."""
        # Held during the attempt: tabs that ask at the same time wait for this one instead of making their own.
        with self._lock:
            if self._history is None and time.monotonic() - self._tried_at >= RETRY_S:
                try:
                    self._history = ArchiveHistory(self._open_archive())
                except (JetError, JournalError, OSError) as problem:
                    log.info("no history: %s", problem)
                    self._problem, self._tried_at = problem, time.monotonic()
            if self._history is None:
                raise NoHistory(
                    "this bus has no journal that you may read: start jetd with --journal, or jet radar with one;"
                    f" the daemon says: {self._problem}",
                    self._problem,
                )
            return self._history

    def is_there(self) -> bool:
        """Return True if there is a past."""
        try:
            self.get()
        except NoHistory:
            return False
        return True

    def close(self) -> None:
        """Close the journal."""
        with self._lock:
            history, self._history = self._history, None
        if history is not None:
            history.archive.close()


class Login:
    """Way of a browser to the bus: the mirror that its tabs share, and its past."""

    def __init__(self, user: str | None, make_mirror: Callable[[], BusMirror], history: HistorySource) -> None:
        self.user = user
        self.history = history
        self.used_at = time.monotonic()
        self._make_mirror = make_mirror
        self._mirror: BusMirror | None = None

    def attach(self, tab: Onlooker) -> BusMirror:
        """Return the mirror of this login, which tells the tab of the bus from now on."""
        if self._mirror is None or self._mirror.is_closed:
            self._mirror = self._make_mirror()
        self._mirror.attach(tab)
        return self._mirror


class Logins:
    """Logins by their token, with limits on their number and age."""

    def __init__(self, logins_max: int = LOGINS_MAX, idle_s: float = IDLE_S) -> None:
        self._logins_max = logins_max
        self._idle_s = idle_s
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logins)

    def add(self, login: Login) -> tuple[str, list[Login]]:
        """Remember a login; return its new token, and the logins that had to go."""
        token = secrets.token_urlsafe(32)
        self._logins[token] = login
        gone = []
        oldest_at = time.monotonic() - self._idle_s
        # In the order of their last use, so that the first one that may stay ends the loop.
        for known, other in list(self._logins.items()):
            if len(self._logins) <= self._logins_max and other.used_at >= oldest_at:
                break
            gone.append(self._logins.pop(known))
        return token, gone

    def find(self, token: str | None) -> Login | None:
        """Return the login of a token, if it is known and not too old."""
        login = self._logins.get(token) if token else None
        # One that is too old stays here until the next ``add``, which returns it to be closed.
        if token is None or login is None or time.monotonic() - login.used_at > self._idle_s:
            return None
        login.used_at = time.monotonic()
        self._logins.move_to_end(token)
        return login

    def remove(self, token: str | None) -> Login | None:
        """Forget a login."""
        return self._logins.pop(token, None) if token else None

    def take_all(self) -> list[Login]:
        """Forget and return all logins."""
        gone, self._logins = list(self._logins.values()), OrderedDict()
        return gone
