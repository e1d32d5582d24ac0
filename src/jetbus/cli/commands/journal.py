"""``jet journal``: manage the journals of this machine."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import click

from jetbus.cli.command import DURATION, Example, Family, command
from jetbus.cli.commands.journal_export import export
from jetbus.cli.exit_codes import Code, print_message, usage_error
from jetbus.cli.journals import explain_errors, get_folder, open_journal
from jetbus.cli.output import Output
from jetbus.cli.progress import show_bar

if TYPE_CHECKING:
    from jetbus.journal.stats import Stats

journals = Family("journal", help="Inspect, verify, compact, prune and export journals.")

_folder = click.argument("folder", metavar="[DIR]", required=False)
PROBLEMS_SHOWN = 10
"""Problems that `jet journal verify` lists unless it is asked for all."""
# Powers of ten, as the sellers of disks count.
_BYTES = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class Bytes(click.ParamType[int]):
    """Parameter type for a number of bytes such as 10GB, 500MB or 1000."""

    name = "bytes"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)(kB|MB|GB|TB)?", str(value), re.ASCII)
        if found is None:
            raise usage_error(f"{value!r} is not a number of bytes; write it as 1000, 500MB or 10GB")
        return int(found[1]) * _BYTES[found[2] or ""]


@command(
    examples=[
        Example("jet journal du log", "the size and contents of a journal"),
        Example("jet journal du 'logs/*' --output jsonl", "several journals, with their busiest paths"),
    ],
    bus=False,
)
@_folder
def du(form: str | None, folder: str | None) -> None:
    """Print the events, bytes, files and time range of the journal in DIR, or of all that a pattern matches."""
    with open_journal(folder) as log:
        found = log.stats()
    columns = ("bus", "events", "bytes", "segments", "parquet_files", "first", "last", "first_ts", "last_ts")
    with Output(columns, form, value="bytes") as out:
        for bus, stats in found.items():
            out.put({"bus": bus, **dataclasses.asdict(stats), **_format_instants(stats)})


def _format_instants(stats: Stats) -> dict[str, str | None]:
    from jetbus.journal.instants import write_instant

    return {
        name: None if (us := getattr(stats, name)) is None else write_instant(us) for name in ("first_ts", "last_ts")
    }


@command(
    examples=[
        Example("jet journal verify log", "exit code 7 if it is damaged"),
        Example("jet journal verify log --all --output jsonl", "list all damage, for a script"),
    ],
    bus=False,
)
@_folder
@click.option("--all", "list_all", is_flag=True, help=f"list all problems, not only the first {PROBLEMS_SHOWN}")
def verify(form: str | None, folder: str | None, list_all: bool) -> int:
    """Verify the journal in DIR: checksums, order, indexes and snapshots. If it is damaged, the exit code is 7."""
    with explain_errors():
        from jetbus.journal import verify as problems_of

        with show_bar("verify"):
            found = problems_of(get_folder(folder))
    with Output(("file", "seq", "text"), form, value="text", empty="the journal is intact") as out:
        out.put_all(map(dataclasses.asdict, found if list_all else found[:PROBLEMS_SHOWN]))
    if len(found) > PROBLEMS_SHOWN and not list_all:
        print_message(f"{len(found)} problems, of which the first {PROBLEMS_SHOWN} are listed; --all lists all of them")
    return Code.NOT_MET if found else Code.OK


@command(
    examples=[
        Example("jet journal compact log", "convert sealed segments to Parquet"),
        Example("jet journal compact log --output value", "the number of events, for a script"),
    ],
    bus=False,
)
@_folder
def compact(form: str | None, folder: str | None) -> None:
    """Convert the sealed segments of the journal in DIR to Parquet; a daemon may be writing to it."""
    with explain_errors():
        from jetbus.journal import compact as compact_all

        with show_bar("compact"):
            done = compact_all(get_folder(folder))
    columns = ("segments", "files", "events", "bytes_before", "bytes_after")
    Output(columns, form, value="events").put_all([dataclasses.asdict(done)])


@command(
    examples=[
        Example("jet journal prune log --keep 30d", "drop events older than 30 days"),
        Example("jet journal prune log --keep-bytes 10GB", "drop the oldest events until 10 GB are left"),
    ],
    bus=False,
)
@_folder
@click.option("--keep", "keep_s", type=DURATION, metavar="DURATION", help="drop events that are older")
@click.option("--keep-bytes", type=Bytes(), metavar="BYTES", help="drop the oldest events until this size is reached")
def prune(form: str | None, folder: str | None, keep_s: float | None, keep_bytes: int | None) -> None:
    """Drop the oldest Parquet files of the journal in DIR. Segments are left to the daemon."""
    if keep_s is None and keep_bytes is None:
        raise usage_error("no limit given; give --keep 30d or --keep-bytes 10GB")
    with explain_errors():
        from jetbus.journal import prune as prune_all

        done = prune_all(get_folder(folder), keep_s, keep_bytes)
    Output(("files", "events", "bytes"), form, value="events").put_all([dataclasses.asdict(done)])


for _one in (du, verify, compact, prune, export):
    journals.add_command(_one)
