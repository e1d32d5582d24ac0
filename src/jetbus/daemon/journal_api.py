"""The daemon's journal for its peers: the methods under ``$jet/journal/``, and the history behind fetch and get.

Tables are sent as Arrow streams, page by page: as bytes to binary peers, in base64 to others. Permission is checked
before anything is read. All reading happens in the threads of ``bus.history_worker``; the event loop only asks the
writer to flush, and never waits for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jetbus import journal
from jetbus.bus.builtin import Method
from jetbus.bus.record import record_present
from jetbus.bus.replay import PastElement, PastEvent
from jetbus.daemon.admin import read_any_rule
from jetbus.errors import Internal, Invalid, JetError, LimitReached, NotAllowed, WrongType
from jetbus.journal import pages
from jetbus.journal.events import CLEARING_EVENTS, TREE_EVENTS
from jetbus.journal.instants import read_instant, write_instant
from jetbus.journal.log import Log
from jetbus.journal.segment import EVENTS, SCHEMA, JournalRow
from jetbus.journal.source import NODE, without_value_tests
from jetbus.json_types import Json, JsonObject
from jetbus.paths import is_daemons
from jetbus.rules import EVERYTHING, Rule
from jetbus.wire import binary, jsonrpc

if TYPE_CHECKING:
    import pyarrow as pa

    from jetbus.bus.access import Auth
    from jetbus.bus.ports import Seam
    from jetbus.bus.session import Session
    from jetbus.daemon.daemon import Daemon
    from jetbus.daemon.journaling import Journaling, JournalSeam
    from jetbus.journal.writer import AppendedEvent

Result = TypeVar("Result")

ARROW = "application/vnd.apache.arrow.stream"
REPLAY_BYTES = 1 << 20
"""Bytes of a page of a replay; it ends with the event that crosses them."""
REPLAYED_EVENTS = (*TREE_EVENTS, "describe")
GONE = "retention has dropped the requested events; the first event in the journal has seq {}"

log = logging.getLogger("jetbus.daemon")


class JournalApi:
    """Queries about the past, for peers that are allowed to make them."""

    def __init__(self, daemon: Daemon, journaling: Journaling) -> None:
        self._daemon = daemon
        self._journaling = journaling
        self.journal = journal.open(journaling.directory)
        self.log = Log(journaling.directory)
        self._cursors = pages.PageCursors(
            lambda: daemon.config.journal_cursors_max,
            lambda: daemon.config.past_bytes_max,
            self._count_dropped_cursor,
        )
        journaling.record_present = self._record_present
        for name, method in _METHODS.items():
            daemon.bus.builtin.add_method(f"{NODE}/{name}", self._make_method(name, method), daemon.bus.history_worker)

    def _make_method(self, name: str, method: Callable[[JournalApi, MethodArgs], bytes]) -> Method:
        """Return a method of the bus that checks the caller on the loop and reads in a thread."""

        def call(session: Session, params: Json) -> Callable[[], bytes]:
            self._check_groups(session.auth, f"{NODE}/{name}")
            # On the loop, before any thread or disk is involved.
            args = MethodArgs(params, session.label)
            seam = self._journaling.bring_up_to_date()

            def read() -> bytes:
                seam.wait()
                return _translate_errors(lambda: method(self, args))

            return read

        return call

    def _record_present(self, paths: Iterable[str] | None) -> None:
        bus = self._daemon.bus
        record_present(self._journaling.writer, bus, list(bus.tree.elements) if paths is None else paths)

    def _count_dropped_cursor(self) -> None:
        self._daemon.bus.limit_hits["journal_cursors_max"] += 1

    # -- permission

    def _check_groups(self, auth: Auth | None, path: str) -> None:
        groups = self._daemon.config.journal_groups
        # Without users all peers are alike; with users the past is closed until a setting opens it.
        if not groups and self._daemon.bus.permissions.users is None:
            return
        if auth is None or not set(groups) & set(auth.fetch_groups):
            raise NotAllowed(
                path, f"{path} is open to users of journal_groups only; the daemon's configuration has them"
            )

    def check(self, auth: Auth | None, instant: Json) -> None:
        """Raise if this user may not query the past, or if the instant cannot be parsed."""
        self._check_groups(auth, NODE)
        _translate_errors(lambda: journal.read_instant(instant))

    # -- history for fetch and get

    def as_of(self, instant: Json, rule: Rule) -> list[PastElement]:
        """Return the elements with a path that matched the rule at an instant."""
        return _translate_errors(lambda: self._read_tree(instant, _without_value_tests(rule)))

    def _read_tree(self, instant: Json, rule: Rule | None) -> list[PastElement]:
        tree = self.check_size(self.journal.as_of(instant, rule, missing_ok=True))
        return [_convert_element(row) for row in tree.to_pylist()]

    def check_size(self, tree: pa.Table) -> pa.Table:
        """Return a tree of the past; refuse one that takes more memory than the limit."""
        allowed = self._daemon.config.past_bytes_max
        if tree.nbytes > allowed:
            self._daemon.bus.limit_hits["past_bytes_max"] += 1
            raise LimitReached(
                "past_bytes_max",
                allowed,
                f"the tree was too large then; narrow the rule, or read pages of {NODE}/as_of",
            )
        return tree

    def since(self, instant: Json, rule: Rule) -> Replay:
        """Return a reader of the tree at an instant, as adds, and of the events since then."""
        return Replay(self, instant, _without_value_tests(rule))

    def check_count(self, count: int) -> None:
        """Refuse a replay of more events than the limit."""
        allowed = self._daemon.config.replay_events_max
        if count > allowed:
            self._daemon.bus.limit_hits["replay_events_max"] += 1
            raise LimitReached("replay_events_max", allowed, "too much has happened since then; begin later")

    def bring_up_to_date(self, rule: Rule | None = None) -> ReplaySeam:
        """Start a flush of the journal; with a rule, collect later events of its paths in memory."""
        if rule is None:
            return ReplaySeam(self._journaling.bring_up_to_date())
        # Values are tested when the events are replayed: one that
        # stops matching is a remove, and must not be missed here.
        path_rule = _without_value_tests(rule) or EVERYTHING
        allowed = self._daemon.config.replay_events_max
        return ReplaySeam(self._journaling.bring_up_to_date(lambda path: _sees_path(path_rule, path), allowed))

    def when_recorded(self, then: Callable[[], None]) -> None:
        """Call ``then`` on the loop once all events so far are recorded for good, or dropped."""
        self._journaling.when_recorded(then)

    # -- methods of the bus

    def offsets(self, _args: MethodArgs) -> bytes:
        """Return the first and the last event of the journal, and the instant up to which it is complete."""
        # Read before the journal, which then has every event up to this instant.
        complete_us = self._journaling.writer.complete_us
        ((bus, offsets),) = self.journal.offsets().items()
        offsets["now"] = max(complete_us, offsets["now"] or 0) or None
        return binary.encode_json_body(jsonrpc.encode({"bus": bus, **offsets}))

    def range(self, args: MethodArgs) -> bytes:
        """Return a page of events from a seq or an instant on."""
        page = pages.write_events_page(
            self.journal,
            args.rule(),
            since=args.get("since"),
            until=args.get("until"),
            seq=args.number("seq"),
            seq_until=args.number("seqUntil"),
            columns=args.names("columns", SCHEMA.names),
            events=args.names("events", EVENTS),
            always=args.names("always", EVENTS),
            late=args.flag("late"),
            limit=args.limit(),
        )
        return binary.encode_typed_body(ARROW, page)

    def tree(self, args: MethodArgs) -> bytes:
        """Return a page of the tree at an instant or after a seq."""
        seq, instant = args.number("seq"), args.get("instant")
        if seq is not None and instant is not None:
            raise Invalid("args", "give either instant or seq for a tree, not both")
        page = pages.write_tree_page(
            self.journal,
            instant,
            args.rule(),
            seq=seq,
            offset=args.number("offset") or 0,
            limit=args.limit(),
            cursors=self._cursors,
            caller=args.caller,
        )
        return binary.encode_typed_body(ARROW, page)

    def history(self, args: MethodArgs) -> bytes:
        """Return a page of the values of one path over time."""
        path = args.get("path")
        if not isinstance(path, str):
            raise WrongType("path")
        page = pages.write_history_page(
            self.journal,
            path,
            args.get("since"),
            args.get("until"),
            offset=args.number("offset") or 0,
            limit=args.limit(),
            cursors=self._cursors,
            caller=args.caller,
        )
        return binary.encode_typed_body(ARROW, page)


class ReplaySeam:
    """A seam between past and live, with events in the form that the bus replays."""

    def __init__(self, seam: JournalSeam) -> None:
        self._seam = seam
        self.wait = seam.wait

    def end(self) -> list[PastEvent] | None:
        """Return the events after the seam, None if there were too many to collect."""
        events = self._seam.end()
        return None if events is None else [_convert_appended(event) for event in events]


class Replay:
    """Reads the tree at an instant and the events since then, in pages that are limited by their bytes."""

    def __init__(self, api: JournalApi, instant: Json, path_rule: Rule | None) -> None:
        self._api = api
        self._instant = instant
        self._rule = path_rule
        self._tree: pa.Table | None = None
        """The rows of the tree that are still to be sent; None before the first page."""
        self._next_seq = self._last_seq = 0

    def read_page(self, seam: Seam | None) -> tuple[list[PastEvent], bool]:
        """Return the next events, and True if these are all up to the seam, or up to the last one."""
        return _translate_errors(lambda: self._read_page(seam))

    def _read_page(self, seam: Seam | None) -> tuple[list[PastEvent], bool]:
        if seam is not None:
            self._last_seq = seam.wait()
        if self._tree is None:
            self._tree = self._open()
        events, bytes_left = self._read_tree(self._tree, REPLAY_BYTES)
        if bytes_left > 0:
            events += self._read_events(bytes_left)
        return events, self._next_seq > self._last_seq

    def _open(self) -> pa.Table:
        log, journal = self._api.log, self._api.journal
        # The tree and the events after it are separated by a seq, not by the instant: more events with that very
        # instant may be written between the two reads.
        seq = min(log.seq_at(log.instant_us(self._instant)), self._last_seq)
        self._next_seq = seq + 1
        count = 0
        for batch in self._read(("seq",)):
            count += batch.num_rows
            self._api.check_count(count)
        return self._api.check_size(journal.as_of(rule=self._rule, seq=seq, missing_ok=True))

    def _read_tree(self, tree: pa.Table, bytes_left: int) -> tuple[list[PastEvent], int]:
        rows, size_bytes = pages.measure_rows(tree, bytes_left)
        page, self._tree = tree.slice(0, rows), tree.slice(rows)
        if not self._tree.num_rows:
            self._tree = self._tree.slice(0, 0).combine_chunks()  # a slice would keep the whole tree in memory
        elements = map(_convert_element, page.to_pylist())
        adds = [
            PastEvent("add", one.ts, one.path, one.value, one.fetch_only, one.schema, one.source_us, one.quality)
            for one in elements
        ]
        return adds, bytes_left - size_bytes if rows == tree.num_rows else 0

    def _read_events(self, bytes_left: int) -> list[PastEvent]:
        events: list[tuple[int, PastEvent]] = []
        end_seq = self._last_seq
        for batch in self._read(None):
            rows, size_bytes = pages.measure_rows(batch, bytes_left)
            events += map(_convert_row, batch.slice(0, rows).to_pylist())
            bytes_left -= size_bytes
            if rows < batch.num_rows or bytes_left <= 0:
                end_seq = events[-1][0]
                break
        self._next_seq = end_seq + 1
        return [event for _, event in events]

    def _read(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return self._api.journal.read(
            self._rule,
            seq=self._next_seq,
            seq_until=self._last_seq + 1,
            columns=columns,
            events=REPLAYED_EVENTS,
            always=CLEARING_EVENTS,
        )


_METHODS: dict[str, Callable[[JournalApi, MethodArgs], bytes]] = {
    "offsets": JournalApi.offsets,
    "range": JournalApi.range,
    "as_of": JournalApi.tree,
    "history": JournalApi.history,
}


class MethodArgs:
    """The named arguments of a method call, with type checks."""

    def __init__(self, args: Json, caller: str = "") -> None:
        if args and not isinstance(args, dict):
            raise Invalid("args", 'pass the arguments as an object, such as {"since": "-2h"}')
        self._args: JsonObject = args or {}
        self.caller = caller
        """The label of the calling session; cursors are never shared between sessions."""

    def get(self, name: str) -> Json:
        """Return an argument as it was sent; None if it was not."""
        return self._args.get(name)

    def number(self, name: str) -> int | None:
        """Return an argument that must be a non-negative 64-bit integer."""
        number = self._args.get(name)
        if number is None:
            return None
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 63:
            raise WrongType(name)
        return number

    def flag(self, name: str) -> bool:
        """Return an argument that must be true or false; False if it was not sent."""
        flag = self._args.get(name, False)
        if not isinstance(flag, bool):
            raise WrongType(name)
        return flag

    def limit(self) -> int:
        """Return the number of rows of a page: the requested number, but no more than ``ROWS_MAX``."""
        return min(self.number("limit") or pages.ROWS_MAX, pages.ROWS_MAX)

    def names(self, name: str, known: Collection[str]) -> list[str] | None:
        """Return an argument that must be a list of known names."""
        names = self._args.get(name)
        if names is None:
            return None
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise WrongType(name)
        if unknown := [one for one in names if one not in known]:
            raise Invalid(name, f"unknown {name}: {', '.join(unknown)}; choose from {', '.join(known)}")
        return names

    def rule(self) -> Rule | None:
        """Return the rule, which is text or the parameters of a fetch."""
        rule = self._args.get("rule")
        return None if rule is None else read_any_rule(rule)


def _translate_errors(read: Callable[[], Result]) -> Result:
    """Call a function, turning errors of the journal into errors of the bus."""
    try:
        return read()
    except JetError:
        raise
    except journal.BadInstant as problem:
        raise Invalid("instant", str(problem)) from None
    except journal.JournalGone as problem:
        raise Invalid("journalGone", GONE.format(problem.first_seq)) from None
    except journal.JournalError as problem:
        # Its text names files of the daemon's machine, which peers have no business with.
        log.error("a query for the journal failed: %s", problem)
        raise Internal("the journal cannot be read there; the daemon's log says why") from None


def _without_value_tests(rule: Rule) -> Rule | None:
    """Return the path part of a rule; None if it matches every path."""
    path_rule = without_value_tests(rule)
    return None if path_rule == EVERYTHING else path_rule


def _sees_path(rule: Rule, path: str) -> bool:
    """Return whether a rule matches a path; as on the bus, ``$jet`` states must be named by the rule."""
    return rule.matches_path(path) and (rule.sees_daemon or not is_daemons(path))


# Three forms of events become those of the bus: rows of a tree, rows of the log, and events still in memory.


def _convert_element(row: JournalRow) -> PastElement:
    path = row["path"]
    (fetch_only, schema), ts = _read_detail(row["detail"]), _format_ts(row["ts"])
    source_us, quality = _read_stamp(row)
    return PastElement(
        path, jsonrpc.encode(path), _encode_value(row), fetch_only, ts, schema, source_us=source_us, quality=quality
    )


def _convert_row(row: JournalRow) -> tuple[int, PastEvent]:
    (fetch_only, schema), ts = _read_detail(row["detail"]), _format_ts(row["ts"])
    return row["seq"], PastEvent(
        row["event"], ts, row["path"] or "", _encode_value(row), fetch_only, schema, *_read_stamp(row)
    )


def _convert_appended(event: AppendedEvent) -> PastEvent:
    fetch_only, schema = _read_detail(event.detail)
    value = None if event.kind == "method" else event.value
    path = "" if event.event in CLEARING_EVENTS else event.path
    ts = write_instant(event.ts_us)
    return PastEvent(event.event, ts, path, value, fetch_only, schema, event.source_us, event.quality)


def _encode_value(row: JournalRow) -> bytes | None:
    value: str | None = row["value"]
    return None if value is None or row["kind"] == "method" else value.encode()


class _Detail(msgspec.Struct):
    """The members of a detail that fetches and gets tell."""

    fetchOnly: bool | None = None  # noqa: N815 - as on the wire
    schema: msgspec.Raw = msgspec.Raw(b"")
    """Empty if there is none: msgspec takes no union of ``Raw`` and None."""


_decode_detail = msgspec.json.Decoder(_Detail).decode


def _read_detail(detail: str | bytes | None) -> tuple[bool, bytes | None]:
    """Return whether an element is fetchOnly, and its schema."""
    if detail is None:
        return False, None
    read = _decode_detail(detail)
    return read.fetchOnly is True, bytes(read.schema) or None


def _read_stamp(row: JournalRow) -> tuple[int | None, bytes | None]:
    """Return source time and quality of a row."""
    source_ts, quality = row["source_ts"], row["quality"]
    source_us = None if source_ts is None else read_instant(source_ts)
    if quality is not None and not quality.startswith("{"):
        quality = f'"{quality}"'
    return source_us, None if quality is None else quality.encode()


def _format_ts(ts: datetime | None) -> str:
    return write_instant(round(ts.timestamp() * 1_000_000)) if ts is not None else ""
