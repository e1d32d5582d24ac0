"""Expectations: conditions that the rows of a table should meet, read from a TOML file.

    [expect.plausible]
    table = "events"
    condition = "num is null or num between -50 and 200"
    action = "drop"

``warn`` only counts the rows that do not meet the condition, ``drop`` keeps them out of the table and puts them into
the table ``quarantine``, ``fail`` ends the pipeline before the batch is committed. A condition that is null is met, as
in a CHECK of SQL. Rows are counted while they are written, so expectations cost no pass of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from jetbus.spark.entries import check_condition, read_entries
from jetbus.spark.schemas import DOC, TABLES, Table
from jetbus.spark.spark_errors import BadExpectation, ExpectationFailed

__all__ = ["Expectation", "Outcome", "Watched", "kept_condition", "parse_expectations", "read_expectations"]

EXPECTATIONS_MAX = 200
"""Expectations in one file."""
ACTIONS = ("warn", "drop", "fail")
_WORDS = ("table", "condition", "action")
# No carried tables: a row that is kept out of these would be missing in all later batches.
_GUARDED = ("events", "history", "rollups", "availability", "requests", "alarms")


@dataclass(frozen=True)
class Expectation:
    """One expectation of a file."""

    name: str
    table: str
    condition: str
    action: str = "warn"

    @property
    def is_met(self) -> str:
        """The condition in SQL, met where it is null; it may end with a comment."""
        return f"coalesce(({self.condition}\n), true)"


@dataclass(frozen=True)
class Outcome:
    """Rows that a batch wrote to a table, and how many of them did not meet an expectation."""

    expectation: Expectation
    rows: int
    failed: int


def read_expectations(
    file: str | Path, spark: SparkSession, own: Mapping[str, Table] | None = None
) -> tuple[Expectation, ...]:
    """Read the expectations of a file; those that Spark does not understand are refused before anything runs."""
    tables = {**{name: TABLES[name] for name in _GUARDED}, **(own or {})}
    found = parse_expectations(file)
    for one in found:
        _check(one, spark, tables)
    return found


def parse_expectations(file: str | Path) -> tuple[Expectation, ...]:
    """Read the expectations of a file as far as that takes no Spark: their conditions and tables are not looked at."""
    entries = read_entries(
        file,
        "expect",
        dict.fromkeys(_WORDS, str),
        BadExpectation,
        most=EXPECTATIONS_MAX,
        instead="merge some by 'and'",
        option="expectations",
    )
    return tuple(_read(name, entry) for name, entry in entries.items())


def _read(name: str, entry: dict[str, Any]) -> Expectation:
    for word in ("table", "condition"):
        if word not in entry:
            raise BadExpectation(name, f'{word} is missing; add table = "events" and condition = "num < 200"')
    made = Expectation(name, entry["table"], entry["condition"], entry.get("action", "warn"))
    if made.action not in ACTIONS:
        raise BadExpectation(name, f"there is no action {made.action!r}; there are {', '.join(ACTIONS)}")
    return made


def _check(one: Expectation, spark: SparkSession, tables: Mapping[str, Table]) -> None:
    """Raise ``BadExpectation`` for a table that is not there or a condition that Spark does not understand."""
    if one.table not in tables:
        raise BadExpectation(one.name, f"there is no table {one.table!r} to look at; there are {', '.join(tables)}")
    columns = (*tables[one.table].columns, *((DOC,) if one.table == "events" else ()))
    check_condition(spark, columns, one.name, "condition", one.condition, BadExpectation)


def kept_condition(is_row: str, expectations: Iterable[Expectation]) -> str:
    """Return the condition for rows that belong into a table, given the one for those that would without them."""
    return " and ".join([is_row, *(one.is_met for one in expectations if one.action == "drop")])


class Watched:
    """Rows on their way into a table, with the expectations they should meet."""

    def __init__(self, rows: DataFrame, expectations: Iterable[Expectation], is_row: str) -> None:
        self._chosen = tuple(expectations)
        self._observation = Observation()
        self.rows = rows
        """The same rows; they are counted as they pass."""
        self.is_kept = is_row
        """True if a row belongs into the table."""
        if not self._chosen:
            return
        counts = [f"count_if({is_row} and not {one.is_met}) as failed_{n}" for n, one in enumerate(self._chosen)]
        # Spark counts while it writes the rows; the counts are there when the write has ended.
        self.rows = rows.observe(self._observation, *map(F.expr, (f"count_if({is_row}) as rows", *counts)))
        self.is_kept = kept_condition(is_row, self._chosen)

    def outcomes(self) -> list[Outcome]:
        """Give the counts, after the rows have been written; raises ``ExpectationFailed`` for one that must be met."""
        if not self._chosen:
            return []
        counted = self._observation.get
        found = [Outcome(one, counted["rows"], counted[f"failed_{n}"]) for n, one in enumerate(self._chosen)]
        for one in found:
            if one.failed and one.expectation.action == "fail":
                raise ExpectationFailed(
                    f"{one.failed} of {one.rows} rows of the table {one.expectation.table!r} do not meet the "
                    f"expectation {one.expectation.name!r}: {one.expectation.condition}; nothing of this batch is in "
                    "the tables. Mend what makes them, or change its action to warn or drop"
                )
        return found


def quarantined(
    rows: DataFrame, table: str, expectations: Iterable[Expectation], batch: int, at: datetime
) -> DataFrame:
    """Turn rows that were kept out of a table into rows of the quarantine."""
    dropping = [one for one in expectations if one.action == "drop"]
    # The first expectation that was not met is the one that is named.
    reason = F.coalesce(*[F.when(F.expr(f"not {one.is_met}"), F.lit(n)) for n, one in enumerate(dropping)])
    own = {
        "table": F.lit(table),
        "expectation": F.array(*[F.lit(one.name) for one in dropping])[F.col("reason")],
        "condition": F.array(*[F.lit(one.condition) for one in dropping])[F.col("reason")],
        "batch": F.lit(batch).cast("bigint"),
        "ts": F.lit(at),
        "row": F.col("row"),
    }
    found = rows.select(F.to_json(F.struct("*")).alias("row"), reason.alias("reason")).where("reason is not null")
    return found.select([own[name].alias(name) for name in TABLES["quarantine"].names])
