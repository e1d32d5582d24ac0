"""Journals as ``jet at``, ``jet diff`` and ``jet history`` read them.

A source is either a journal on this machine or the journal of a daemon, read over the bus; ``jetbus.journal.source``
asks both the same questions. Journals need Arrow, which takes longer to import than ``jet get`` takes to run, so it is
imported when first used.

Rows are read without the value tests of a rule. A value that does not match still ends the one before it, which matters
for times and aggregates; see ``timelines``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import click

from jetbus.cli.arguments import read_rule, read_rules
from jetbus.cli.command import MINUS, is_bus_named
from jetbus.cli.exit_codes import Code, Failure, escape, usage_error
from jetbus.cli.target import Target
from jetbus.journal.instants import is_local, read_instant, wall_clock_us, write_instant
from jetbus.journal.journal_errors import (
    NEEDS_PYARROW,
    BadInstant,
    BeforeJournal,
    JournalError,
    JournalGone,
    NoJournal,
    NotAJournal,
    NotRecorded,
)
from jetbus.journal.source import (
    AskedAt,
    JournalRequest,
    JournalSource,
    PinnedRange,
    check_known,
    check_recorded,
    open_folders,
    read_cuts,
    read_time,
)
from jetbus.journal.spreadsheet import format_time as format_time
from jetbus.journal.spreadsheet import to_record as to_record
from jetbus.json_types import Json
from jetbus.peer.values import read_value
from jetbus.rules import rule as make_rule

if TYPE_CHECKING:
    import pyarrow as pa

    from jetbus.journal import Journal
    from jetbus.journal.segment import JournalRow
    from jetbus.peer.simple import SimplePeer

corrected_option = click.option(
    "--corrected", is_flag=True, help="what was true, with values that came late, instead of what the bus showed"
)
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
        # Undoes the change that ``Command.parse_args`` made for click.
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


STAMPS = ("unit", "quality", "source_ts", "late")
"""Members of a record that most states do not have; they get a column only where at least one has them."""


class BusSources:
    """The journals that a command asks: one of a daemon, or those in a folder, by the names of their buses.

    Rows have the columns of the journal, with ``bus`` if there are several buses. All that a command asks means one
    moment: when it began.
    """

    def __init__(self, sources: Mapping[str | None, JournalSource]) -> None:
        self._sources = sources

    def pin(self, since: str | None = None, until: str | None = None) -> dict[str | None, PinnedRange]:
        """Return a range of time as each bus has it."""
        return {bus: source.pin(since, until) for bus, source in self._sources.items()}

    def as_of(self, instant: str, rules: Sequence[str] = (), *, corrected: bool = False) -> Rows:
        """Return the states and methods that existed at an instant and match one of the rules, or all of them.

        With ``corrected``, values that came late are among them.
        """
        found: dict[tuple[str | None, str], JournalRow] = {}
        for bus, span in self.pin(instant).items():
            for rule in map(read_rule, rules or ("**",)):
                source, wanted = self._sources[bus], rule if rules else None
                if corrected:
                    present = span._replace(since_us=None) if instant == "now" else span
                    table = source.read_corrected_tree(present, wanted)
                else:
                    table = source.read_tree_at(span.make_place(instant), wanted)
                found |= {(bus, row["path"]): row for row in self._name_bus(bus, table)}
        return list(found.values())

    def history(self, rule: str, spans: Mapping[str | None, PinnedRange]) -> Rows:
        """Return adds, changes, removes and late values of all paths that match a rule, oldest first."""
        tables = {bus: self._sources[bus].read_history(span, read_rule(rule)) for bus, span in spans.items()}
        return [row for bus, table in tables.items() for row in self._name_bus(bus, table)]

    @staticmethod
    def _name_bus(bus: str | None, table: pa.Table) -> Rows:
        rows: Rows = table.to_pylist()
        return rows if bus is None else [{"bus": bus, **row} for row in rows]

    def check_known(self, spans: Mapping[str | None, PinnedRange], rules: Sequence[str], listing: str) -> None:
        """Fail if no bus has anything that matches at the end of a range; ``listing`` is the next step then."""
        problem: NotRecorded | None = None
        for bus, span in spans.items():
            try:
                self._sources[bus].run(check_known(span, read_rules(rules), listing))
                return
            except NotRecorded as error:
                # Another bus may have the path that is meant.
                problem = problem if problem is not None and problem.similar else error
        if problem is not None:
            raise problem

    def read_before(self, bus: str | None, span: PinnedRange, path: str) -> Rows:
        """Return the state at a path just before a range; no row if it did not exist, or if that is not known."""
        before = span._replace(since_us=(span.since_us or 0) - 1)
        try:
            return self._name_bus(bus, self._sources[bus].read_corrected_tree(before, make_rule(equals=path)))
        except JournalGone:
            return []

    def read_cuts(self, spans: Mapping[str | None, PinnedRange]) -> dict[str | None, list[tuple[int, int]]]:
        """Return the cuts of each bus: the seq of each, and the last instant before it at which values were known."""
        # Without an end: later events may cut a value of the range.
        return {bus: self._sources[bus].run(read_cuts(span._replace(until_us=None))) for bus, span in spans.items()}

    def find_time_us(self, bus: str | None, seq: int) -> int | None:
        """Return the time of an event; None if the event was dropped."""
        return self._sources[bus].run(read_time(seq))


def open_folder(folder: str, asked: AskedAt | None = None) -> BusSources:
    """Open the journals in a folder, or in all that a pattern matches."""
    sources = open_folders(folder, asked or AskedAt())
    return BusSources({bus if len(sources) > 1 else None: source for bus, source in sources.items()})


def open_daemon(peer: SimplePeer, page_rows: int | None = None, asked: AskedAt | None = None) -> BusSources:
    """Open the journal of a daemon."""
    # Only jetd keeps a journal; other daemons would just say that a method does not exist.
    peer.check_jetbus("look back")

    def ask(request: JournalRequest) -> Json:
        return read_value(peer.call(request.path, request.params))

    return BusSources({None: JournalSource(ask, asked or AskedAt(), page_rows=page_rows)})


@contextmanager
def open_source(
    bus: Target, folder: str | None, *instants: str | None, asked: AskedAt | None = None
) -> Iterator[BusSources]:
    """Open a journal: that in a folder if one is given, else the daemon's. Instants are checked first.

    They mean the moment ``asked``, by default now: before a connection is made, which may take its time.
    """
    asked = asked or AskedAt()
    with explain_errors():
        # Before the connection, so that a mistyped instant is found even if no daemon is running.
        for instant in instants:
            if instant is not None:
                read_instant(instant)
        # Whoever names a bus on the command line means its journal, whatever the environment says.
        found = folder or ("" if is_bus_named() else os.environ.get("JET_JOURNAL"))
        if found:
            yield open_folder(found, asked)
            return
        with bus.connect() as peer:
            try:
                yield open_daemon(peer, asked=asked)
            except NoJournal:
                text = f"the daemon at {peer.url} keeps no journal; start it with `jetd --journal DIR`,"
                record = "or record any daemon with `jet record DIR` and read that with --journal DIR"
                raise Failure(f"{text} {record}", Code.NOT_FOUND) from None


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


def check_begin(source: BusSources, instant: str | None) -> None:
    """Fail if an instant is before the first event of the journal, of which it knows nothing."""
    problem = None
    for span in source.pin(instant).values():
        try:
            check_recorded(span, span.since_us, instant)
            return
        except BeforeJournal as error:
            problem = error
    if problem is not None:
        raise problem


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
    except (NotAJournal, JournalGone, NotRecorded, BeforeJournal) as problem:
        raise Failure(escape(str(problem)), Code.NOT_FOUND) from None
    except JournalError as problem:
        raise Failure(str(problem)) from None


def insert_stamps(columns: Sequence[str], present: Collection[str]) -> list[str]:
    """Return the columns of an output with those of STAMPS that are present: behind the value, times at the end.

    >>> insert_stamps(["path", "value", "ts"], {"unit", "source_ts"})
    ['path', 'value', 'unit', 'ts', 'source_ts']
    """
    at = columns.index("value") + 1
    unit, quality, source_ts, late = ([name] if name in present else [] for name in STAMPS)
    return [*columns[:at], *unit, *quality, *columns[at:], *source_ts, *late]
