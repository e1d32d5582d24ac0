"""``jet tables``: look after the tables of a pipeline, which may run meanwhile.

No Spark is started and no Java: Delta Lake's own library does it all.
"""

from __future__ import annotations

import json
import math
from typing import Any

import click

from jetbus.cli.frame import DURATION, Example, Family, command
from jetbus.cli.output import Output
from jetbus.cli.past import written
from jetbus.cli.progress import bar
from jetbus.cli.spark import spark_explained, storage_option

tables = Family("tables", help="Tables of a pipeline: merge their files, remove old ones, show how they came about.")

HOUR_S = 3600
KEEP_S = 168.0 * HOUR_S
"""How long files of old versions stay by default."""

_place = click.argument("place", metavar="DIR|URI")
_names = click.option("--table", "names", multiple=True, metavar="NAME", help="only this table; repeatable")


@command(
    examples=[
        Example("jet tables optimize tables", "merge the small files of all tables"),
        Example("jet tables optimize tables --table history --by-path", "rows of one path side by side"),
    ],
    bus=False,
)
@_place
@_names
@click.option(
    "--by-path", is_flag=True, help="also order rows by path (z-order): who asks for few paths reads few files"
)
@storage_option
def optimize(form: str | None, place: str, names: tuple[str, ...], by_path: bool, storage: dict[str, str]) -> None:
    """Merge the small files of the tables in a folder, or at a URI, into large ones; what they hold stays the same.

    The small files stay on disk for those who read them or go back in time, until `jet tables vacuum` removes them.
    """
    with spark_explained():
        from jetbus.spark.location import read_location
        from jetbus.spark.maintenance import merge_files

        location = read_location(place, storage)
        with bar("optimize"):
            done = merge_files(location, names, by_path=by_path)
    columns = ("table", "files_before", "files_after", "bytes_before", "bytes_after")
    Output(columns, form, value="table").put_all(_merged(name, metrics) for name, metrics in done.items())


def _merged(name: str, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of a merge as a record; delta-rs tells sizes as JSON text."""
    before, after = (json.loads(metrics[word]) for word in ("filesRemoved", "filesAdded"))
    return {
        "table": name,
        "files_before": metrics["numFilesRemoved"],
        "files_after": metrics["numFilesAdded"],
        "bytes_before": before["totalSize"],
        "bytes_after": after["totalSize"],
    }


@command(
    examples=[
        Example("jet tables vacuum tables --dry-run", "the files that would be removed"),
        Example("jet tables vacuum tables --keep 30d", "remove what only versions older than 30 days need"),
    ],
    bus=False,
)
@_place
@_names
@click.option(
    "--keep", "keep_s", type=DURATION, default=KEEP_S, metavar="DURATION", help="7d unless given, at least 1h"
)
@click.option("--dry-run", is_flag=True, help="remove nothing; name the files that would go")
@storage_option
def vacuum(
    form: str | None, place: str, names: tuple[str, ...], keep_s: float, dry_run: bool, storage: dict[str, str]
) -> None:
    """Remove the files of the tables in a folder, or at a URI, that only versions older than --keep need, and strays.

    Nobody can go back in time beyond that afterwards. What the tables hold now stays.
    """
    hours = keep_s / HOUR_S
    with spark_explained():
        from jetbus.spark.location import read_location
        from jetbus.spark.maintenance import remove_old_files

        location = read_location(place, storage)
        with bar("vacuum"):
            # Parts of an hour are kept as a whole one, except that less than one is refused.
            keep_hours = math.ceil(hours) if hours >= 1 else 0
            done = remove_old_files(location, names, keep_hours=keep_hours, dry_run=dry_run)
    with Output(("table", "files", "removed"), form, value="files") as out:
        for name, files in done.items():
            listed = {"names": files} if dry_run else {}
            out.put({"table": name, "files": len(files), "removed": not dry_run, **listed})


@command(
    examples=[
        Example("jet tables history tables --last 10", "the last batches: when, how many events, how long they took"),
        Example("jet tables history tables --table events", "the versions of one table"),
    ],
    bus=False,
)
@_place
@click.option("--table", "name", metavar="NAME", help="the versions of this table instead, as its Delta log has them")
@click.option("--last", type=click.IntRange(1), metavar="N", help="only so many, the newest")
@storage_option
def history(form: str | None, place: str, name: str | None, last: int | None, storage: dict[str, str]) -> None:
    """The batches that made the tables in a folder, or at a URI, from old to new.

    `jet sql --batch N` shows the tables as they were after one of them.
    """
    with spark_explained():
        from jetbus.spark.location import read_location
        from jetbus.spark.maintenance import list_batches, list_versions

        location = read_location(place, storage)
        rows = list_batches(location) if name is None else list_versions(location, name)
    columns = ("batch", "at", "events", "seconds") if name is None else ("version", "at", "operation", "batch")
    with Output(columns, form, value=columns[0]) as out:
        out.put_all({**row, "at": written(row["at"])} for row in (rows[-last:] if last else rows))


for _one in (optimize, vacuum, history):
    tables.add_command(_one)
