"""The daemon's journal: the bus's record, written by a thread of its own or, where nobody may hear of what is not yet
on disk, before anything is sent.

pyarrow is needed only for a daemon that keeps a journal, and is loaded with its writer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

import jetbus
from jetbus import journal
from jetbus.daemon.config import Config, ConfigError

if TYPE_CHECKING:
    from jetbus.daemon.connection import Connection
    from jetbus.journal import Settings, Writer

AGAIN_PATHS = 5_000
"""Paths that are told again in one turn."""

log = logging.getLogger("jetbus.daemon")


class Journaling:
    """A writer, and when it writes."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        assert config.journal is not None  # noqa: S101
        self.directory = config.journal
        try:
            densities = journal.Densities(list(config.journal_rules))
            self.writer: Writer = journal.Writer(config.journal, settings_of(config), densities=densities)
        except (journal.JournalError, ModuleNotFoundError, ValueError) as problem:
            raise ConfigError(f"cannot keep a journal: {problem}") from None
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jetd-journal")
        self._always = config.journal_fsync == "always"
        self._writing = False
        self.tell_again: Callable[[Iterable[str] | None], None] = lambda _paths: None
        """Tells what these paths are now, or everything."""
        self._missed: set[str] = set()
        """What has still to be told again."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def commit_first(self) -> Callable[[], object] | None:
        """What to call before anything is sent, if nothing may be known that is not yet on disk."""
        return self._commit_first if self._always else None

    def start(self) -> None:
        """The daemon has started: say so, and write from now on."""
        found = self.writer.recovered
        told: dict[str, Any] = {"version": jetbus.__version__, "restart": found.last_seq > 0 or not found.clean}
        if not found.clean:
            told |= {"clean": False, "cut_bytes": found.cut_bytes}
        self.tick()
        self.writer.append("start", detail=msgspec.json.encode(told))
        self._schedule()

    def tick(self) -> None:
        """A turn of the daemon: what happens in it happens now."""
        self.writer.now_us = time.time_ns() // 1000

    def came(self, connection: Connection) -> None:
        """A peer may speak now."""
        self._tell("peer", connection, {"address": connection.address, "transport": connection.kind})

    def went(self, connection: Connection) -> None:
        """A peer is gone; what it owned goes next."""
        self._tell("gone", connection)

    def _tell(self, event: str, connection: Connection, detail: Any = None) -> None:
        if connection.session is not None:
            self.tick()
            told = None if detail is None else msgspec.json.encode(detail)
            self.writer.append(event, None, None, None, connection.session.label, told)

    # -- writing

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self.writer.settings.flush_ms / 1000, self._flush)

    def _flush(self) -> None:
        self._schedule()
        self.tick()
        self._make_good()
        if self._always:
            self.writer.commit()
        elif not self._writing:
            self._writing = True
            pending = self.writer.take()
            self._thread.submit(self._write, pending)

    def _make_good(self) -> None:
        """Where events were dropped, tell how that is now, as much as fits into a turn."""
        while (lost := self.writer.take_lost()) is not None:
            self._missed |= lost.paths
            if lost.everything:
                self._start_anew()
        some = list(islice(self._missed, AGAIN_PATHS))
        if some and self.writer.problem is None:
            self._missed.difference_update(some)
            self.tell_again(some)

    def _start_anew(self) -> None:
        self.writer.append("start", detail=msgspec.json.encode({"version": jetbus.__version__, "again": True}))
        self._missed.clear()
        self.tell_again(None)

    def _write(self, pending: Any) -> None:
        try:
            self.writer.write(pending)
        except Exception:
            log.exception("the journal failed")
        finally:
            self._writing = False

    def _commit_first(self) -> None:
        if self.writer.pending:
            self.writer.commit()

    def commit(self) -> int:
        """Write all there is, now; gives the last seq that is in the journal."""
        if self._always:
            self.writer.commit()
        else:
            self._thread.submit(self._write, self.writer.take()).result()  # behind what is being written
        return self.writer.seq - 1 - self.writer.pending

    def stop(self) -> None:
        """The daemon stops."""
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=True)
        self.tick()
        self.writer.append("stop")
        self.writer.close()


def settings_of(config: Config) -> Settings:
    """The writer's settings."""
    return journal.Settings(
        fsync=config.journal_fsync,  # type: ignore[arg-type]  # checked when it was read
        flush_ms=config.journal_flush_ms,
        segment_bytes=config.journal_segment_mb << 20,
        segment_age_s=config.journal_segment_s,
        keep_bytes=config.journal_keep_mb << 20 or None,
        keep_s=config.journal_keep_s or None,
        bus=config.journal_bus,
        buffered_bytes_max=config.journal_buffer_mb << 20,
    )
