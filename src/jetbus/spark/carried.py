"""Rows that are carried from batch to batch, in tables that only grow until they are folded.

A batch appends a row for what it touched and leaves all others alone, so that its cost does not depend on how much
lives. Of the rows of a path, or of an alarm at a path, the newest counts. Now and then a table is **folded**: rewritten
with the rows that count, when more has been appended than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.clock import Position
from jetbus.spark.schemas import TABLES

__all__ = ["after_cuts", "newest_alarms", "newest_paths", "only_touched", "open_stays", "open_values"]


def after_cuts(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Leave out the rows of paths that a cut of their bus has ended since."""
    cuts = {bus: position.cut_seq for bus, position in positions.items() if position.cut_seq >= 0}
    return rows.where(F.col("seq") > _looked_up(cuts)) if cuts else rows


def _looked_up(numbers: Mapping[str, int]) -> Column:
    known = F.create_map(*[F.lit(one) for pair in numbers.items() for one in pair])
    return F.coalesce(F.try_element_at(known, F.col("bus")), F.lit(-1))


def only_touched(rows: DataFrame, touched: DataFrame, cut_buses: Sequence[str], otherwise: str = "false") -> DataFrame:
    """Keep the rows of paths that were touched, of buses that were cut, and those for which a condition holds."""
    keys = touched.select("bus", "path").distinct().withColumn("is_touched", F.lit(True))
    is_cut = F.col("bus").isin(*cut_buses) if cut_buses else F.lit(False)
    joined = rows.join(keys, ["bus", "path"], "left").where(F.col("is_touched") | is_cut | F.expr(otherwise))
    return joined.select(*rows.columns)


def _newest(rows: DataFrame, key: tuple[str, ...], order: tuple[str, ...]) -> DataFrame:
    """Keep the newest row of each key."""
    newest = F.max_by(F.struct(*rows.columns), F.struct(*order)).alias("newest")
    return rows.groupBy(*key).agg(newest).select("newest.*")


def newest_paths(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Keep one row for each path that is there."""
    return _newest(after_cuts(rows, positions), ("bus", "path"), ("seq",)).where(F.col("event") != "remove")


def newest_alarms(rows: DataFrame) -> DataFrame:
    """Keep one row for each alarm that is raised, or pending for its hold time."""
    # A pending alarm that is raised keeps the number of its event; it is later by its hold time.
    return _newest(rows, ("alarm", "bus", "path"), ("seq", "ts")).where(F.col("what") != "cleared")


def open_values(paths: DataFrame) -> DataFrame:
    """Turn the newest rows of paths into rows of history: the values in force."""
    own = {"valid_from": F.col("ts"), "valid_to": _null("timestamp"), "ended_by": _null("string")}
    states = paths.where(F.col("kind") == "state")
    return states.select(*[own.get(name, F.col(name)).alias(name) for name in TABLES["history"].names])


def open_stays(paths: DataFrame) -> DataFrame:
    """Turn the newest rows of paths into rows of availability: the states and methods that are there."""
    own = {
        **{name: F.col(f"stay.{name}") for name in ("owner", "seq", "since", "changes")},
        "until": _null("timestamp"),
        "up_s": _null("double"),
        "ended_by": _null("string"),
        "last_ts": F.col("ts"),
        "quiet_s": F.col("stay.quiet_us") / F.lit(1e6),
    }
    return paths.select(*[own.get(name, F.col(name)).alias(name) for name in TABLES["availability"].names])


def _null(kind: str) -> Column:
    return F.lit(None).cast(kind)
