"""Sources of past events for ``jet at``, ``jet diff`` and ``jet history``.

A source is either a journal on this machine or the journal of a daemon, read over the bus. Both return the same rows.
Journals need Arrow, which takes longer to import than ``jet get`` takes to run, so it is imported when first used.

The journal of a daemon is read in pages, and grows between two of them. So that all pages belong to one answer, a query
is pinned before its first page: ``now`` and ``-2h`` become a seq, and a range gets the present end of the journal.

Rows are read without the value tests of a rule. A value that does not match still ends the one before it, which matters
for times and aggregates; see ``timelines``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeAlias

import click

from jetbus.cli.arguments import get_exact_path, read_rule
from jetbus.cli.command import MINUS, is_bus_named
from jetbus.cli.errors import Code, Failure, escape, get_reason, usage_error
from jetbus.cli.target import Target
from jetbus.errors import JetError, NotFound
from jetbus.journal.errors import NEEDS_PYARROW, BadInstant, JournalDamaged, JournalError, JournalGone, NotAJournal
from jetbus.journal.instants import is_local, read_instant, wall_clock_us, write_instant
from jetbus.json_types import Json, JsonObject
from jetbus.peer.values import read_value
from jetbus.rules import Rule, write_rule
from jetbus.rules import rule as make_rule

if TYPE_CHECKING:
    from jetbus.journal import Journal
    from jetbus.journal.segment import JournalRow
    from jetbus.peer.simple import SimplePeer

journal_option = click.option(
    "--journal",
    "-j",
    "folder",
    metavar="DIR",
    help="read the journal in DIR; default: JET_JOURNAL, else the daemon's journal",
)
Rows: TypeAlias = "list[JournalRow]"


class Instant(click.ParamType[str]):
    """Parameter type for an instant: RFC 3339, ``06:45``, ``yesterday``, ``-2h`` or ``now``.

    Days and times of the clock are meant in the time zone of this machine, and become UTC here.
    """

    name = "instant"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        text = str(value)
        # Undoes what ``Command.parse_args`` did for click.
        if text.startswith(MINUS):
            return "-" + text[1:]
        if not is_local(text):
            return text
        # A daemon may be in another time zone, so it never gets a local time.
        with explain_errors():
            return write_instant(read_instant(text)).replace(".000000Z", "Z")


INSTANT = Instant()
since_option = click.option(
    "--since", type=INSTANT, metavar="INSTANT", help="start of the time range, such as -2h, 06:45 or yesterday"
)
until_option = click.option(
    "--until", type=INSTANT, metavar="INSTANT", help="end of the time range, such as 2026-03-01T12:00:00Z"
)


CUTS = ("stop", "start", "gap")
"""Events after which no value is known until its path is added again."""
TREE_EVENTS = ("add", "change", "remove")
HISTORY_COLUMNS = ("ts", "seq", "event", "value", "peer", "path", "source_ts", "quality")
STAMPS = ("unit", "quality", "source_ts")
"""Members of a record that most states do not have; they get a column only where at least one has them."""


class JournalSource(Protocol):
    """Source of past events. Rows have the columns of the journal, with ``bus`` if there are several buses."""

    def as_of(self, instant: str, rules: Sequence[str] = ()) -> Rows:
        """Return the states and methods that existed at an instant and match one of the rules, or all of them."""

    def history(self, rule: str, since: str | None, until: str | None) -> Rows:
        """Return the adds, changes and removes of all paths that match a rule, oldest first, with path and unit."""

    def read_before(self, row: JournalRow, path: str) -> Rows:
        """Return the state at a path just before a row of its history; no row if it did not exist."""

    def read_cuts(self, since: str | None) -> Rows:
        """Return the events of CUTS since an instant: ``seq``, ``event``, ``ts``, ``detail``."""

    def find_time_us(self, bus: str | None, seq: int | None = None) -> int | None:
        """Return the time of an event, or of the end of the journal without ``seq``; None if the event was dropped."""

    def find_begin_us(self) -> int | None:
        """Return the time of the first event; None if there is none."""


class FolderSource:
    """Source that reads a journal on this machine."""

    def __init__(self, folder: str) -> None:
        import jetbus.journal

        self._journal = jetbus.journal.open(folder)

    def as_of(self, instant: str, rules: Sequence[str] = ()) -> Rows:
        return _merge_rows(self._journal.as_of(instant, rule).to_pylist() for rule in rules or (None,))

    def history(self, rule: str, since: str | None, until: str | None) -> Rows:
        columns = [*(["bus"] if len(self._journal.buses) > 1 else []), *HISTORY_COLUMNS, "detail"]
        # Rows with other values are needed, too: they end the value before them. ``make_row_test`` sorts them out.
        path_rule = without_value_tests(read_rule(rule))
        events = (*TREE_EVENTS, "describe")
        rows: Rows = self._journal.table(path_rule, since, until, columns=columns, events=events).to_pylist()
        return _add_units(rows, lambda: self._read_tree_before(path_rule, rows))

    def _read_tree_before(self, rule: Rule, rows: Rows) -> Rows:
        """Return the elements that existed just before the first of these rows, on each bus."""
        name = self._journal.buses[0]
        first = {row.get("bus", name): row["seq"] for row in reversed(rows)}
        tree: Rows = self._journal.as_of(rule=rule, seq={bus: seq - 1 for bus, seq in first.items()}).to_pylist()
        return tree

    def read_before(self, row: JournalRow, path: str) -> Rows:
        bus, seq = row.get("bus"), row["seq"] - 1
        table = self._journal.as_of(rule=make_rule(equals=path), seq=seq if bus is None else {bus: seq})
        return [row for row in table.to_pylist() if row.get("bus") == bus]

    def read_cuts(self, since: str | None) -> Rows:
        rows: Rows = self._journal.table(since=since, events=CUTS).to_pylist()
        return rows

    def find_time_us(self, bus: str | None, seq: int | None = None) -> int | None:
        # Rows name their bus only if the journal has several.
        bus = bus or self._journal.buses[0]
        if seq is None:
            return self._journal.offsets()[bus]["last_ts"]
        # An end of 0 leaves out the other buses, which have seqs of their own.
        until = {name: seq + 1 if name == bus else 0 for name in self._journal.buses}
        try:
            rows = self._journal.table(seq={bus: seq}, seq_until=until, columns=["ts"]).to_pylist()
        except JournalGone:
            return None
        return read_instant(rows[0]["ts"]) if rows else None

    def find_begin_us(self) -> int | None:
        begins = (offsets["first_ts"] for offsets in self._journal.offsets().values())
        return min((begin_us for begin_us in begins if begin_us is not None), default=None)


class DaemonSource:
    """Source that reads the journal of a daemon over the bus, page by page."""

    def __init__(self, peer: SimplePeer, page_rows: int | None = None) -> None:
        # Only jetd keeps a journal; other daemons would just say that a method does not exist.
        peer.check_jetbus("look back")
        self._peer = peer
        self._page_rows = page_rows
        """Rows requested per page; None leaves it to the daemon."""

    def as_of(self, instant: str, rules: Sequence[str] = ()) -> Rows:
        pinned = self._pin_instant(instant)
        return _merge_rows(self._read_all("as_of", {"rule": rule, **pinned}, "offset") for rule in rules or (None,))

    def history(self, rule: str, since: str | None, until: str | None) -> Rows:
        parsed = read_rule(rule)
        # A single path has a method of its own, whose rows do not repeat the path.
        path = get_exact_path(without_value_tests(parsed))
        if path is not None:
            rows = self._read_all("history", {"path": path, "since": since, "until": until}, "seq")
            return [{**row, "path": path} for row in rows]
        wanted, _ = write_rule(without_value_tests(parsed))  # it may cover more than the rule
        params = {
            "rule": wanted,
            "since": since,
            "until": until,
            "events": [*TREE_EVENTS, "describe"],
            "columns": [*HISTORY_COLUMNS, "detail"],
        }
        rows = [row for row in self._read_range(params) if parsed.matches_path(row["path"])]
        return _add_units(rows, lambda: self._read_all("as_of", {"rule": wanted, "seq": rows[0]["seq"] - 1}, "offset"))

    def read_before(self, row: JournalRow, path: str) -> Rows:
        return self._read_all("as_of", {"rule": {"path": {"equals": path}}, "seq": row["seq"] - 1}, "offset")

    def read_cuts(self, since: str | None) -> Rows:
        return self._read_range({"since": since, "events": list(CUTS)})

    def _read_range(self, params: JsonObject) -> Rows:
        """Return all events that a range has now, page by page."""
        # The end is fixed before the first page: a busy journal grows as fast as it is read.
        end = self._call("offsets", {})["last"] + 1
        params = {**params, "seqUntil": end}
        rows, following = self._read_page("range", params)
        while following < end:
            more, following = self._read_page("range", {**params, "seq": following})
            rows += more
        return rows

    def find_time_us(self, _bus: str | None, seq: int | None = None) -> int | None:
        if seq is None:
            # The daemon is running, so its journal is complete up to now. The clock of the journal never goes back.
            return max(wall_clock_us(), self._call("offsets", {})["last_ts"] or 0)
        try:
            rows, _ = self._read_page("range", {"seq": seq, "seqUntil": seq + 1, "columns": ["ts"]})
        except _EventsGone:
            return None
        return read_instant(rows[0]["ts"]) if rows else None

    def find_begin_us(self) -> int | None:
        begin_us: int | None = self._call("offsets", {})["first_ts"]
        return begin_us

    def _pin_instant(self, instant: str) -> JsonObject:
        """Return the parameters for an instant; relative ones become a seq, so that all pages mean the same instant."""
        if instant != "now" and not instant.startswith("-"):
            return {"instant": instant}
        # The first event since then; the tree before it is the tree at that instant.
        rows, following = self._read_page("range", {"since": instant, "columns": ["seq"], "limit": 1})
        return {"seq": (rows[0]["seq"] if rows else following) - 1}

    def _read_all(self, method: str, params: JsonObject, cursor: str) -> Rows:
        rows, following = self._read_page(method, params)
        # Where the next page begins is an offset in a tree, and a seq in a history.
        while following is not None:
            more, following = self._read_page(method, {**params, cursor: following})
            rows += more
        return rows

    def _read_page(self, method: str, params: JsonObject) -> tuple[Rows, Json]:
        from jetbus.journal.pages import read_page

        table, following = read_page(read_value(self._call(method, {"limit": self._page_rows, **params})))
        return table.to_pylist(), following

    def _call(self, method: str, params: JsonObject) -> Json:
        args = {name: value for name, value in params.items() if value is not None}
        try:
            return self._peer.call(f"$jet/journal/{method}", args)
        except NotFound:
            raise Failure(
                f"the daemon at {self._peer.url} keeps no journal; start it with `jetd --journal DIR`,"
                " or read another journal with --journal DIR",
                Code.NOT_FOUND,
            ) from None
        except JetError as problem:
            if get_reason(problem) != "journalGone":
                raise
            raise _EventsGone(str(problem), Code.NOT_FOUND) from None


class _EventsGone(Failure):
    """Failure to read events that the daemon's journal has dropped already."""


def without_value_tests(rule: Rule) -> Rule:
    """Return the path part of a rule."""
    return replace(rule, value=(), sort=None)


def _add_units(rows: Rows, read_before: Callable[[], Rows]) -> Rows:
    """Return the rows of a history, each with the unit that was valid then, and without those that only describe.

    The unit is in the detail of an earlier add or describe, which may be before the range. ``read_before`` returns the
    tree of then, and is called only if it is needed.
    """
    from jetbus.journal.descriptions import DESCRIBING_EVENTS, read_detail_schema

    first_events: dict[tuple[str | None, str], str] = {}
    for row in rows:
        first_events.setdefault((row.get("bus"), row["path"]), row["event"])
    units: dict[tuple[str | None, str], str | None] = {}
    if not set(first_events.values()) <= set(DESCRIBING_EVENTS):
        # What retention has dropped is not known any more, and no reason to withhold the values.
        with suppress(JournalGone, JournalDamaged, _EventsGone):
            units = {(row.get("bus"), row["path"]): row["unit"] for row in read_before()}
    found: Rows = []
    for row in rows:
        key = row.get("bus"), row["path"]
        detail = row.pop("detail")
        if row["event"] in DESCRIBING_EVENTS:
            units[key] = read_detail_schema(detail).unit
        if row["event"] != "describe":
            found.append({**row, "unit": units.get(key)})
    return found


def _merge_rows(results: Iterable[Rows]) -> Rows:
    """Return the rows of several rules, each path of a bus once."""
    return list({(row.get("bus"), row["path"]): row for rows in results for row in rows}.values())


@contextmanager
def open_source(bus: Target, folder: str | None, *instants: str | None) -> Iterator[JournalSource]:
    """Open a journal: that in a folder if one is given, else the daemon's. Instants are checked first."""
    with explain_errors():
        # Before the connection, so that a mistyped instant is found even if no daemon is running.
        for instant in instants:
            if instant is not None:
                read_instant(instant)
        # Whoever names a bus on the command line means its journal, whatever the environment says.
        found = folder or ("" if is_bus_named() else os.environ.get("JET_JOURNAL"))
        if found:
            yield FolderSource(found)
            return
        with bus.connect() as peer:
            yield DaemonSource(peer)


def check_range(since: str | None, until: str | None, names: tuple[str, str] = ("--since ", "--until ")) -> None:
    """Fail if a time range ends before it starts."""
    if since is None or until is None:
        return
    # One clock reading for both, or `jet diff now now` could find its range reversed.
    now_us = wall_clock_us()
    with explain_errors():
        is_reversed = read_instant(since, now_us) > read_instant(until, now_us)
    if is_reversed:
        first, last = names
        raise usage_error(f"the time range is reversed: {first}{since} is later than {last}{until}; swap them")


def check_recorded(source: JournalSource, instant: str | None) -> None:
    """Fail if an instant is before the first event of the journal, of which it knows nothing."""
    if instant is None or instant == "now":
        return
    begin_us = source.find_begin_us()
    if begin_us is None:
        return
    # The clock of a journal never goes back, so it may be ahead of the clock of this machine.
    now_us = max(wall_clock_us(), source.find_time_us(None) or 0)
    if read_instant(instant, now_us) < begin_us:
        begin = write_instant(begin_us)
        raise Failure(f"{instant} is before the journal begins, which is at {begin}; give a later one", Code.NOT_FOUND)


def no_match_then(rules: Sequence[str], instant: str) -> Failure:
    """Return the error for rules that matched nothing at an instant."""
    what = " or ".join(map(escape, rules))
    return Failure(f"nothing matched {what} at that time; `jet at {instant}` lists everything", Code.NOT_FOUND)


@contextmanager
def open_journal(folder: str | None) -> Iterator[Journal]:
    """Open the journal in a folder, and turn its errors into failures."""
    with explain_errors():
        import jetbus.journal

        yield jetbus.journal.open(get_folder(folder))


def get_folder(folder: str | None) -> str:
    """Return the given folder, or that of JET_JOURNAL."""
    found = folder or os.environ.get("JET_JOURNAL")
    if not found:
        raise usage_error("no journal given; name its folder on the command line or in JET_JOURNAL")
    return found


@contextmanager
def explain_errors() -> Iterator[None]:
    """Turn errors of the journal into failures with exit codes."""
    try:
        yield
    except ModuleNotFoundError as problem:
        # Any other missing module is a bug, and not a package that the user left out.
        if problem.name != "pyarrow":
            raise
        raise Failure(NEEDS_PYARROW) from None
    except BadInstant as problem:
        raise usage_error(str(problem)) from None
    except (NotAJournal, JournalGone) as problem:
        raise Failure(str(problem), Code.NOT_FOUND) from None
    except JournalError as problem:
        raise Failure(str(problem)) from None


def to_record(row: Mapping[str, Json]) -> JsonObject:
    """Return a row of the journal as a record: values decoded, times as text, empty columns left out."""
    record: JsonObject = {}
    for name, value in row.items():
        if value is None:
            continue
        # A quality is a plain word, or a JSON object if it has a reason.
        if name in ("value", "before", "after", "detail") or (name == "quality" and value.startswith("{")):
            record[name] = json.loads(value)
        elif isinstance(value, datetime):
            record[name] = format_time(value)
        else:
            record[name] = value
    return record


def insert_stamps(columns: Sequence[str], present: Collection[str]) -> list[str]:
    """Return the columns of an output with those of STAMPS that are present: behind the value, times at the end.

    >>> insert_stamps(["path", "value", "ts"], {"unit", "source_ts"})
    ['path', 'value', 'unit', 'ts', 'source_ts']
    """
    at = columns.index("value") + 1
    unit, quality, source_ts = ([name] if name in present else [] for name in STAMPS)
    return [*columns[:at], *unit, *quality, *columns[at:], *source_ts]


def format_time(moment: datetime) -> str:
    """Format a time as RFC 3339 in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
