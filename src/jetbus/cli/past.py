"""What commands about the past share: where they look back, and how what goes wrong there is told.

They look back in the folder of a journal, or over the bus where the daemon keeps one. Either gives the same rows.
The journal needs Arrow, which takes longer to load than all of ``jet get`` runs; so it is imported when it is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, Failure, reason_of, usage
from jetbus.cli.frame import MINUS, bus_is_named
from jetbus.errors import JetError, NotFound
from jetbus.journal.errors import NEEDS_PYARROW, BadInstant, JournalError, JournalGone, NotAJournal
from jetbus.journal.instants import read_instant, wall_clock_us
from jetbus.peer.values import read_value
from jetbus.rules import rule as make_rule

if TYPE_CHECKING:
    from jetbus.cli.quick import QuickPeer
    from jetbus.journal import Journal

journal_option = click.option(
    "--journal", "-j", "folder", metavar="DIR", help="a journal on this machine; else that of JET_JOURNAL or of the bus"
)
Rows = list[dict[str, Any]]


class Instant(click.ParamType[str]):
    """RFC 3339, ``-2h`` or ``now``; the journal reads it."""

    name = "instant"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        return "-" + str(value)[1:] if str(value).startswith(MINUS) else str(value)


INSTANT = Instant()
since_option = click.option("--since", type=INSTANT, metavar="INSTANT", help="from then on, such as -2h")
until_option = click.option("--until", type=INSTANT, metavar="INSTANT", help="until then, such as 2026-03-01T12:00:00Z")


CUTS = ("stop", "start", "gap")
"""The events after which nothing is known of any path until it is told again."""


class Past(Protocol):
    """Where one can look back. Rules are text; rows have the columns of the journal, with ``bus`` if it has several."""

    def as_of(self, instant: str, rule: str | None = None) -> Rows: ...

    def history(self, path: str, since: str | None, until: str | None) -> Rows: ...

    def before(self, row: Mapping[str, Any], path: str) -> Rows:
        """The state that was at a path just before a row of its history; nothing if there was none."""

    def cuts(self, since: str | None) -> Rows:
        """When the buses were cut from then on: ``seq``, ``event``, ``ts``, ``detail``."""

    def last_us(self, bus: str | None, seq: int | None = None) -> int | None:
        """When the event of a seq was, or without one up to when all is known; None if that is gone."""


class FolderPast:
    """A journal on this machine."""

    def __init__(self, folder: str) -> None:
        import jetbus.journal

        self._journal = jetbus.journal.open(folder)

    def as_of(self, instant: str, rule: str | None = None) -> Rows:
        rows: Rows = self._journal.as_of(instant, rule).to_pylist()
        return rows

    def history(self, path: str, since: str | None, until: str | None) -> Rows:
        rows: Rows = self._journal.history(path, since, until).to_pylist()
        return rows

    def before(self, row: Mapping[str, Any], path: str) -> Rows:
        bus, seq = row.get("bus"), row["seq"] - 1
        table = self._journal.as_of(rule=make_rule(equals=path), seq=seq if bus is None else {bus: seq})
        return [row for row in table.to_pylist() if row.get("bus") == bus]

    def cuts(self, since: str | None) -> Rows:
        rows: Rows = self._journal.table(since=since, events=CUTS).to_pylist()
        return rows

    def last_us(self, bus: str | None, seq: int | None = None) -> int | None:
        bus = bus or self._journal.buses[0]
        if seq is None:
            return self._journal.offsets()[bus]["last_ts"]
        until = {name: seq + 1 if name == bus else 0 for name in self._journal.buses}
        try:
            rows = self._journal.table(seq={bus: seq}, seq_until=until, columns=["ts"]).to_pylist()
        except JournalGone:
            return None
        return read_instant(rows[0]["ts"]) if rows else None


class BusPast:
    """The journal of a daemon, page by page."""

    def __init__(self, peer: QuickPeer, page_rows: int | None = None) -> None:
        peer.check_ours("look back")
        self._peer = peer
        self._page_rows = page_rows
        """How many rows are asked for at a time, if not as many as the daemon gives."""

    def as_of(self, instant: str, rule: str | None = None) -> Rows:
        asked = {"rule": rule, **self._then(instant)}
        return self._rows("as_of", asked, "offset")

    def history(self, path: str, since: str | None, until: str | None) -> Rows:
        return self._rows("history", {"path": path, "since": since, "until": until}, "seq")

    def before(self, row: Mapping[str, Any], path: str) -> Rows:
        return self._rows("as_of", {"rule": {"path": {"equals": path}}, "seq": row["seq"] - 1}, "offset")

    def cuts(self, since: str | None) -> Rows:
        end = self._called("offsets", {})["last"] + 1
        asked = {"since": since, "events": list(CUTS), "seqUntil": end}
        rows, following = self._page("range", asked)
        while following < end:
            more, following = self._page("range", {**asked, "seq": following})
            rows += more
        return rows

    def last_us(self, _bus: str | None, seq: int | None = None) -> int | None:
        if seq is None:
            # It is the present of a daemon that runs, by the journal's clock: that one does not go back.
            return max(wall_clock_us(), self._called("offsets", {})["last_ts"] or 0)
        try:
            rows, _ = self._page("range", {"seq": seq, "seqUntil": seq + 1, "columns": ["ts"]})
        except Failure:
            return None
        return read_instant(rows[0]["ts"]) if rows else None

    def _then(self, instant: str) -> dict[str, Any]:
        """An instant for all pages of a tree: one that depends on the clock is made a seq, by the daemon's clock."""
        if instant != "now" and not instant.startswith("-"):
            return {"instant": instant}
        rows, following = self._page("range", {"since": instant, "columns": ["seq"], "limit": 1})
        return {"seq": (rows[0]["seq"] if rows else following) - 1}

    def _rows(self, method: str, asked: dict[str, Any], going_on: str) -> Rows:
        rows, following = self._page(method, asked)
        while following is not None:
            more, following = self._page(method, {**asked, going_on: following})
            rows += more
        return rows

    def _page(self, method: str, asked: dict[str, Any]) -> tuple[Rows, Any]:
        from jetbus.journal.pages import read_page

        table, following = read_page(read_value(self._called(method, {"limit": self._page_rows, **asked})))
        return table.to_pylist(), following

    def _called(self, method: str, asked: dict[str, Any]) -> Any:
        given = {name: value for name, value in asked.items() if value is not None}
        try:
            return self._peer.call(f"$jet/journal/{method}", given)
        except NotFound:
            raise Failure(
                f"the daemon at {self._peer.url} keeps no journal; start it with --journal DIR,"
                " or give the folder of another journal with --journal DIR",
                Code.NOT_FOUND,
            ) from None
        except JetError as problem:
            if reason_of(problem) != "journalGone":
                raise
            raise Failure(str(problem), Code.NOT_FOUND) from None


@contextmanager
def past(bus: Bus, folder: str | None, *instants: str | None) -> Iterator[Past]:
    """Where to look back: in a folder if one is given, else over the bus. The instants are checked before."""
    with explained():
        for instant in instants:
            if instant is not None:
                read_instant(instant)
        found = folder or ("" if bus_is_named() else os.environ.get("JET_JOURNAL"))
        if found:
            yield FolderPast(found)
            return
        with bus.quick() as peer:
            yield BusPast(peer)


@contextmanager
def journal(folder: str | None) -> Iterator[Journal]:
    """The journal in a folder; what goes wrong with it is told in one sentence."""
    with explained():
        import jetbus.journal

        yield jetbus.journal.open(folder_of(folder))


def folder_of(folder: str | None) -> str:
    """The folder that was given, or that of the environment."""
    found = folder or os.environ.get("JET_JOURNAL")
    if not found:
        raise usage("which journal? Give its folder with --journal DIR, or in JET_JOURNAL")
    return found


@contextmanager
def explained() -> Iterator[None]:
    """Turn the journal's errors into failures with exit codes."""
    try:
        yield
    except ModuleNotFoundError as problem:
        if problem.name != "pyarrow":
            raise
        raise Failure(NEEDS_PYARROW) from None
    except BadInstant as problem:
        raise usage(str(problem)) from None
    except (NotAJournal, JournalGone) as problem:
        raise Failure(str(problem), Code.NOT_FOUND) from None
    except JournalError as problem:
        raise Failure(str(problem)) from None


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the journal as a record: values are JSON, instants text, what is not there is left out."""
    record: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        if name in ("value", "before", "after", "detail"):
            record[name] = json.loads(value)
        elif isinstance(value, datetime):
            record["at" if name == "ts" else name] = written(value)
        else:
            record[name] = value
    return record


def written(moment: datetime) -> str:
    """An instant as RFC 3339."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
