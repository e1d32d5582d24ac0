"""The journal behind a recorder: that of the recorded daemon, for events that the recorder missed.

The daemon tells a fetch where its journal has each event. So the recorder knows up to which seq it has seen everything,
and when its line is back it reads the events from there to the first one that the fetch has brought since::

    seen ... 1041 | missed 1042 ... 1107 | 1108 ... seen again
                    read from the journal

They are values of the past for the recorder, at the times that the daemon's journal has. A daemon without a journal, or
with another one than before, has nothing to read; then the recorder has a gap.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from jetbus.errors import JetError
from jetbus.journal.events import VALUE_EVENTS
from jetbus.journal.journal_errors import JournalReplaced
from jetbus.journal.source import JournalRequest, Pager
from jetbus.peer.aio import PeerAsync
from jetbus.peer.compat import features_of
from jetbus.peer.events import Event
from jetbus.rules import Rule

_COLUMNS = ["ts", "kind", "path", "value", "source_ts", "quality"]


class JournalBehind:
    """The journal of the daemon that a peer records, and how far the peer has seen its events."""

    def __init__(self, peer: PeerAsync, rule: Rule) -> None:
        self._peer, self._rule = peer, rule
        self._id = ""
        self._seen = 0
        """Seq up to which all events were seen; 0 if the daemon has no journal."""
        self._first_again = 0
        """Seq of the first event since the line is back; 0 if there is none yet."""
        self._missed_from = 0
        """Seq of the first event that was missed since the last loss; 0 if none was."""
        self._missed: list[tuple[int, int]] = []
        """Ranges of seqs that were missed before the last loss and not read yet; the ends are not in them."""

    @property
    def is_known(self) -> bool:
        """True if the daemon has a journal that this peer may read."""
        return bool(self._id)

    @property
    def is_missing(self) -> bool:
        """True if there may be events that were missed and not read."""
        return bool(self._missed_from or self._missed)

    async def open(self) -> None:
        """Find the journal, if there is one. All events of the fetch so far must have been asked for before."""
        # Other daemons have none, and one of them ends if a method is called that it does not have.
        if not features_of(self._peer.session.daemon).is_jetbus:
            return
        try:
            offsets = await self._ask(JournalRequest("offsets", {}))
        except JetError:
            return
        self._id, self._seen = offsets["id"], max(self._seen, offsets["last"])

    def note(self, event: Event) -> None:
        """Note an event of the fetch."""
        told = event.told_record
        if isinstance(told, dict):
            self._seen = max(self._seen, told["seq"])
            self._first_again = self._first_again or told["seq"]

    def lose(self) -> None:
        """Note that the line is down."""
        if not self.is_known:
            return
        if self._missed_from and self._first_again:
            self._missed.append((self._missed_from, self._first_again))
            self._missed_from = 0
        self._missed_from = self._missed_from or self._seen + 1
        self._first_again = 0

    async def read_missed(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the rows of the events that were missed, page by page; raise if they cannot be read."""
        offsets = await self._ask(JournalRequest("offsets", {}))
        if offsets["id"] != self._id or offsets["last"] < self._missed_from - 1:
            self._id, self._seen, self._missed_from = offsets["id"], offsets["last"], 0
            self._missed.clear()
            raise JournalReplaced("the daemon has another journal than before")
        while self._missed:
            async for rows in self._read_range(*self._missed[0]):
                yield rows
            del self._missed[0]
        end = min(offsets["last"] + 1, self._first_again or offsets["last"] + 1)
        async for rows in self._read_range(self._missed_from, end):
            yield rows
        self._seen, self._missed_from = max(self._seen, end - 1), 0

    async def _read_range(self, first: int, end: int) -> AsyncIterator[list[dict[str, Any]]]:
        params = {"seq": first, "seqUntil": end, "columns": _COLUMNS, "events": list(VALUE_EVENTS)}
        pager = Pager("range", params, self._rule)
        while pager.request is not None and first < end:
            yield pager.feed(await self._ask(pager.request)).read_all().to_pylist()

    async def _ask(self, request: JournalRequest) -> Any:
        return await self._peer.call(request.path, **request.params)
