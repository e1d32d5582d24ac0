"""Descriptions of watched elements: their schema, the time and quality of their value, and whether it is stale.

Only the rows in sight are asked about, by a fetch of their own that changes with them. The fetch of the whole bus does
not ask: a fetch that asks receives each change alone, and five thousand changes a second are cheaper together.

Daemons of other makes are not asked at all, since they would send the values a second time and no description.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET

from jetbus.errors import NotConnected
from jetbus.paths import is_daemons
from jetbus.peer import Event, FetchAsync, PeerAsync
from jetbus.rules import rule

STALE, BAD, UNCERTAIN = 8, 16, 32
"""Flags of a path, beside those of the session."""
MARKS = STALE | BAD | UNCERTAIN
DESCRIBED_MAX = 500
"""Paths that are asked about at a time; a screen has fewer rows."""

_LEVELS = {"bad": BAD, "uncertain": UNCERTAIN}


class Descriptions:
    """Descriptions of the paths that a tab watches; ``on_marks`` gets the flags of a path when they change."""

    def __init__(self, on_marks: Callable[[str, int], None], on_news: Callable[[], None]) -> None:
        self._on_marks = on_marks
        self._on_news = on_news
        self._schemas: dict[str, Any] = {}
        self._metas: dict[str, Any] = {}
        """Time and quality of values, if their owners state any."""
        self._due_schemas: set[str] = set()
        self._due_metas: set[str] = set()
        self._paths: list[str] = []
        self._fetch: FetchAsync | None = None

    def follow(self, peer: PeerAsync, paths: Iterable[str]) -> None:
        """Ask about these paths, and about no others any more."""
        # A rule that names other paths, too, does not find those of the daemon.
        wanted = sorted(path for path in paths if not is_daemons(path))[:DESCRIBED_MAX]
        if wanted == self._paths:
            return
        # A fetch cannot change its rule, so each set of rows is a fetch of its own.
        self.stop()
        if not wanted:
            return
        # While the connection is lost the daemon cannot be asked; the session calls again when it is back.
        with contextlib.suppress(NotConnected):
            self._fetch = peer.fetch(rule(equals_one_of=wanted), self._receive, schema=True, meta=True)
            # Only if the fetch was sent, so that the next call tries again.
            self._paths = wanted

    def stop(self) -> None:
        """End the fetch, if there is one."""
        if self._fetch is not None:
            self._fetch.close()
        self._fetch, self._paths = None, []

    def forget(self, path: str) -> None:
        """Forget a path that has left the bus; if it comes back, it may describe itself differently."""
        if self._schemas.pop(path, None) is not None:
            self._due_schemas.add(path)
        if self._metas.pop(path, None) is not None:
            self._due_metas.add(path)

    def take(self) -> dict[str, dict[str, Any]]:
        """Return the news since the last time by path; None for a path that has none any more."""
        schemas = {path: self._schemas.get(path) for path in self._due_schemas}
        metas = {path: self._metas.get(path) for path in self._due_metas}
        self._due_schemas, self._due_metas = set(), set()
        return {name: news for name, news in (("schemas", schemas), ("meta", metas)) if news}

    def _receive(self, event: Event) -> None:
        path = event.path
        if event.kind == "remove":
            # The session hears of it by the fetch of all paths, and calls ``forget``.
            return
        schema = None if event.told_schema is UNSET else event.told_schema
        if schema != self._schemas.get(path):
            self._schemas[path] = schema
            self._due_schemas.add(path)
            self._on_news()
        meta = _read_meta(event)
        if meta != self._metas.get(path):
            self._metas[path] = meta
            self._due_metas.add(path)
            self._on_news()
        self._on_marks(path, STALE * event.stale | _LEVELS.get(event.quality.level, 0))


def _read_meta(event: Event) -> dict[str, str] | None:
    """Return the time and quality that an owner has given with a value, None if it has given neither."""
    meta = {"ts": event.ts} if event.ts else {}
    if not event.quality.is_good:
        meta["quality"] = event.quality.level
        if event.quality.reason:
            meta["reason"] = event.quality.reason
    return meta or None
