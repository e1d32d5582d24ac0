"""Rows that are carried from batch to batch, in tables that only grow until they are folded.

A batch appends a row for what it touched and leaves all others alone, so that its cost does not depend on how much
lives. Of the rows of a path, or of an alarm at a path, the newest counts. Now and then a table is **folded**: rewritten
with the rows that count, when more has been appended than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from jetbus.spark.clock import Position
from jetbus.spark.schemas import TABLES
from jetbus.spark.sql_text import join, quote, run, select, write_map
from jetbus.spark.timeline import SIGNS

__all__ = [
    "after_cuts",
    "newest_alarms",
    "newest_elements",
    "newest_paths",
    "only_touched",
    "open_stays",
    "open_values",
]


def after_cuts(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Leave out the rows of paths that a cut of their bus has ended since."""
    # A cut writes no row for each path that it ends. Rows up to its seq just do not count any more.
    cuts = {bus: f"{position.cut_seq}L" for bus, position in positions.items() if position.cut_seq >= 0}
    if not cuts:
        return rows
    return run(select("{rows}", "*", where=f"seq > coalesce({write_map(cuts)}[bus], -1)"), rows=rows)


def only_touched(
    rows: DataFrame,
    touched: DataFrame,
    cut_buses: Sequence[str],
    *,
    by: Sequence[str] = SIGNS,
    hint: str = "",
    otherwise: str = "false",
) -> DataFrame:
    """Keep the rows of paths that were touched, of buses that were cut, and those for which a condition holds.

    ``by`` are the events that touch a path, ``hint`` says how Spark is to join, such as ``broadcast``.
    """
    # Distinct, or the join would repeat a carried row for each event of its path.
    keys = select("{touched}", "distinct bus", "path", where=f"event in {tuple(by)}")
    is_cut = f"bus in ({', '.join(quote(bus) for bus in cut_buses)})" if cut_buses else "false"
    same = "part.bus = other.bus and part.path = other.path"
    text = select(
        join("{rows}", keys, "part.*", "other.bus as touched", on=same, hint=hint),
        "* except (touched)",
        where=f"touched is not null or {is_cut} or {otherwise}",
    )
    return run(text, rows=rows, touched=touched)


def _newest(rows: DataFrame, key: tuple[str, ...], order: tuple[str, ...], *, where: str) -> DataFrame:
    """Keep the newest row of each key."""
    # An aggregate, which unlike a window function needs no sort.
    newest = f"max_by(struct(*), struct({', '.join(order)})) as newest"
    text = select(select("{rows}", newest, group=", ".join(key)), "newest.*")
    return run(select(text, "*", where=where), rows=rows)


def newest_paths(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Keep one row for each path that is there."""
    return _newest(after_cuts(rows, positions), ("bus", "path"), ("seq",), where="event != 'remove'")


def newest_elements(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Keep one row for each element that is described."""
    return _newest(after_cuts(rows, positions), ("bus", "path"), ("seq",), where="schema is not null")


def newest_alarms(rows: DataFrame) -> DataFrame:
    """Keep one row for each alarm that is raised, or pending for its hold time."""
    # A pending alarm that is raised keeps the number of its event; it is later by its hold time.
    return _newest(rows, ("alarm", "bus", "path"), ("seq", "ts"), where="what != 'cleared'")


def open_values(paths: DataFrame) -> DataFrame:
    """Turn the newest rows of paths into rows of history: the values in force."""
    own = {"valid_from": "ts", "valid_to": "cast(null as timestamp)", "ended_by": "cast(null as string)"}
    columns = [f"{own.get(name, name)} as {name}" for name in TABLES["history"].names]
    return run(select("{paths}", *columns, where="kind = 'state'"), paths=paths)


def open_stays(paths: DataFrame) -> DataFrame:
    """Turn the newest rows of paths into rows of availability: the states and methods that are there."""
    own = {
        **{name: f"stay.{name}" for name in ("owner", "seq", "since", "changes")},
        "until": "cast(null as timestamp)",
        "up_s": "cast(null as double)",
        "ended_by": "cast(null as string)",
        "last_ts": "ts",
        "quiet_s": "stay.quiet_us / 1e6D",
    }
    return run(
        select("{paths}", *[f"{own.get(name, name)} as {name}" for name in TABLES["availability"].names]), paths=paths
    )
