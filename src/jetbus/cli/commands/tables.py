"""``jet tables``: manage the tables of a pipeline, which may be running.

Neither Spark nor Java is started: the library of Delta Lake does all the work.
"""

from __future__ import annotations

import json

import click

from jetbus.cli.command import DURATION, Example, Family, command
from jetbus.cli.journals import format_time
from jetbus.cli.output import Output
from jetbus.cli.progress import show_bar
from jetbus.cli.spark import explain_spark_errors, find_tables, storage_option
from jetbus.json_types import JsonObject

tables = Family("tables", help="Manage the tables of a pipeline: merge files, remove old ones, list batches.")

_place_argument = click.argument("place", metavar="DIR|URI")
_table_option = click.option("--table", "names", multiple=True, metavar="NAME", help="only this table; repeatable")


@command(
    examples=[
        Example("jet tables optimize tables", "merge the small files of all tables"),
        Example("jet tables optimize tables --table history --by-path", "also store the rows of a path together"),
    ],
    bus=False,
)
@_place_argument
@_table_option
@click.option(
    "--by-path", is_flag=True, help="also order rows by path (z-order), so that queries of few paths read few files"
)
@storage_option
def optimize(form: str | None, place: str, names: tuple[str, ...], by_path: bool, storage: dict[str, str]) -> None:
    """Merge the small files of the tables in a folder, or at a URI, into large ones; their rows stay the same.

    The small files stay on disk for older versions of the tables until `jet tables vacuum` removes them.
    """
    with explain_spark_errors():
        from jetbus.spark.maintenance import merge_files

        location = find_tables(place, storage)
        with show_bar("optimize"):
            done = merge_files(location, names, by_path=by_path)
    columns = ("table", "files_before", "files_after", "bytes_before", "bytes_after")
    Output(columns, form, value="table").put_all(_to_merge_record(name, metrics) for name, metrics in done.items())


def _to_merge_record(name: str, metrics: JsonObject) -> JsonObject:
    """Return the outcome of a merge as a record; delta-rs reports sizes as JSON text."""
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
        Example("jet tables vacuum tables --dry-run", "list the files that would be removed"),
        Example("jet tables vacuum tables --keep 30d", "remove files needed only by versions older than 30 days"),
    ],
    bus=False,
)
@_place_argument
@_table_option
@click.option(
    "--keep",
    "keep_s",
    type=DURATION,
    metavar="DURATION",
    help="age of files to keep; default: 7d, at least 1h",
)
@click.option("--dry-run", is_flag=True, help="only list the files that would be removed")
@storage_option
def vacuum(
    form: str | None, place: str, names: tuple[str, ...], keep_s: float | None, dry_run: bool, storage: dict[str, str]
) -> None:
    """Remove files that only versions older than --keep need from the tables in a folder, or at a URI.

    Files that belong to no version are removed, too. Versions older than --keep can no longer be read afterwards.
    """
    with explain_spark_errors():
        from jetbus.spark.maintenance import KEEP_S, remove_old_files

        location = find_tables(place, storage)
        with show_bar("vacuum"):
            done = remove_old_files(location, names, keep_s=KEEP_S if keep_s is None else keep_s, dry_run=dry_run)
    with Output(("table", "files", "removed"), form, value="files") as out:
        for name, files in done.items():
            listed = {"names": files} if dry_run else {}
            out.put({"table": name, "files": len(files), "removed": not dry_run, **listed})


@command(
    examples=[
        Example("jet tables history tables --last 10", "the last ten batches"),
        Example("jet tables history tables --table events", "the versions of one table"),
    ],
    bus=False,
)
@_place_argument
@click.option("--table", "name", metavar="NAME", help="list the versions of this table, from its Delta log")
@click.option("--last", type=click.IntRange(1), metavar="N", help="only the newest N")
@storage_option
def history(form: str | None, place: str, name: str | None, last: int | None, storage: dict[str, str]) -> None:
    """List the batches of the tables in a folder, or at a URI, from old to new.

    `jet sql --batch N` queries the tables as of one of them.
    """
    with explain_spark_errors():
        from jetbus.spark.maintenance import list_batches, list_versions

        location = find_tables(place, storage)
        rows = list_batches(location) if name is None else list_versions(location, name)
    columns = ("batch", "ts", "events", "seconds") if name is None else ("version", "ts", "operation", "batch")
    with Output(columns, form, value=columns[0]) as out:
        out.put_all({**row, "ts": row["ts"] and format_time(row["ts"])} for row in (rows[-last:] if last else rows))


for _one in (optimize, vacuum, history):
    tables.add_command(_one)
