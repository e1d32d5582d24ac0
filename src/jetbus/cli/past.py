"""What commands about the past share: the journal they read, and how its errors are told.

The journal needs Arrow, which takes longer to load than all of ``jet get`` runs; so it is imported when it is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.failures import Code, Failure, usage
from jetbus.cli.frame import MINUS

if TYPE_CHECKING:
    from jetbus.journal import Journal

journal_option = click.option(
    "--journal", "-j", "folder", metavar="DIR", help="the folder of the journal; else that of JET_JOURNAL"
)


class Instant(click.ParamType[str]):
    """RFC 3339, ``-2h`` or ``now``; the journal reads it."""

    name = "instant"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        return "-" + str(value)[1:] if str(value).startswith(MINUS) else str(value)


INSTANT = Instant()
since_option = click.option("--since", type=INSTANT, metavar="INSTANT", help="from then on, such as -2h")
until_option = click.option("--until", type=INSTANT, metavar="INSTANT", help="until then, such as 2026-03-01T12:00:00Z")


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
        from jetbus.journal.errors import BadInstant, JournalError, JournalGone, NotAJournal
    except ModuleNotFoundError as problem:
        raise Failure(str(problem)) from None
    try:
        yield
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
