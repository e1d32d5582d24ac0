"""``jet journal``: look after the journals of this machine."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import click

from jetbus.cli.export import export
from jetbus.cli.failures import Code, usage
from jetbus.cli.frame import DURATION, Example, Family, command
from jetbus.cli.output import Output
from jetbus.cli.past import explained, folder_of, journal
from jetbus.cli.progress import bar

journals = Family("journal", help="Journals: what they hold, whether they are whole, and how they stay small.")

_folder = click.argument("folder", metavar="[DIR]", required=False)
_BYTES = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class Bytes(click.ParamType[int]):
    """10GB, 500MB, 1000."""

    name = "bytes"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)(kB|MB|GB|TB)?", str(value), re.ASCII)
        if found is None:
            raise usage(f"{value!r} is no number of bytes; write it as 1000, 500MB or 10GB")
        return int(found[1]) * _BYTES[found[2] or ""]


@command(
    examples=[
        Example("jet journal du log", "how much a journal holds, and of what"),
        Example("jet journal du 'logs/*' --output jsonl", "several, with their busiest paths"),
    ],
    bus=False,
)
@_folder
def du(form: str | None, folder: str | None) -> None:
    """How much the journal in DIR (or in all that a pattern matches) holds: events, bytes, files, from when to when."""
    with journal(folder) as log:
        found = log.stats()
    columns = ("bus", "events", "bytes", "segments", "parquet_files", "first", "last", "first_ts", "last_ts")
    with Output(columns, form, value="bytes") as out:
        for bus, stats in found.items():
            out.put({"bus": bus, **dataclasses.asdict(stats), **_instants(stats)})


def _instants(stats: Any) -> dict[str, str | None]:
    from jetbus.journal.instants import write_instant

    return {
        name: None if (us := getattr(stats, name)) is None else write_instant(us) for name in ("first_ts", "last_ts")
    }


@command(
    examples=[
        Example("jet journal verify log", "exit code 7 if anything is wrong"),
        Example("jet journal verify log --output jsonl", "what is wrong, for a script"),
    ],
    bus=False,
)
@_folder
def verify(form: str | None, folder: str | None) -> int:
    """Check all of the journal in DIR: checksums, order, indexes, snapshots. If it is not whole, exit code 7."""
    with explained():
        from jetbus.journal import verify as problems_of

        with bar("verify"):
            found = problems_of(folder_of(folder))
    with Output(("file", "seq", "text"), form, value="text", empty="the journal is whole") as out:
        out.put_all(map(dataclasses.asdict, found))
    return Code.NOT_MET if found else Code.OK


@command(
    examples=[
        Example("jet journal compact log", "sealed segments become Parquet"),
        Example("jet journal compact log --output value", "the number of events, for a script"),
    ],
    bus=False,
)
@_folder
def compact(form: str | None, folder: str | None) -> None:
    """Turn the sealed segments of the journal in DIR into Parquet; a daemon may write meanwhile."""
    with explained():
        from jetbus.journal import compact as compact_all

        with bar("compact"):
            done = compact_all(folder_of(folder))
    columns = ("segments", "files", "events", "bytes_before", "bytes_after")
    Output(columns, form, value="events").put_all([dataclasses.asdict(done)])


@command(
    examples=[
        Example("jet journal prune log --keep 30d", "drop what is older than 30 days"),
        Example("jet journal prune log --keep-bytes 10GB", "drop the oldest until it is small enough"),
    ],
    bus=False,
)
@_folder
@click.option("--keep", "keep_s", type=DURATION, metavar="DURATION", help="drop what is older")
@click.option("--keep-bytes", type=Bytes(), metavar="BYTES", help="drop the oldest until so much is left")
def prune(form: str | None, folder: str | None, keep_s: float | None, keep_bytes: int | None) -> None:
    """Drop the oldest Parquet files of the journal in DIR. Segments stay; they are the daemon's to drop."""
    if keep_s is None and keep_bytes is None:
        raise usage("keep how much? Give --keep 30d or --keep-bytes 10GB")
    with explained():
        from jetbus.journal import prune as prune_all

        done = prune_all(folder_of(folder), keep_s, keep_bytes)
    Output(("files", "events", "bytes"), form, value="events").put_all([dataclasses.asdict(done)])


for _one in (du, verify, compact, prune, export):
    journals.add_command(_one)
