"""Stages as files of SQL.

A stage is one file ``sql/NAME.sql``: common table expressions over frames, which are named in braces, with parameters
by Spark's own markers. It can be pasted into a notebook and run there:

    text = Path("timeline.sql").read_text()
    spark.sql(text, rows=rows).show()                                       frames by keyword
    spark.sql(text, {"now_us": F.create_map(F.lit("plant"), F.lit(17))}, rows=rows)     parameters by name

Python passes frames and parameters, nothing else. A frame that a stage takes and a batch does not have is empty: Spark
leaves its consequences out of the plan. Conditions that users write are columns of a frame before a stage
takes it.

Spark parses and analyses a stage once. A chain of DataFrame methods says the same, but Spark analyses the plan again
after each of them, and each argument is a call to Java; in a batch of a few events that takes longer than its rows do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.schemas import Column, schema_of

__all__ = ["condition", "empty_frame", "list_texts", "map_buses", "persist", "quote", "run"]

FOLDER = Path(__file__).with_name("sql")
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "$": "\\u0024"})
"""Spark replaces ${NAME} by settings, even within a text."""


@cache
def read_stage(name: str) -> str:
    """Return the text of a stage."""
    return (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def run(stage: str, args: Mapping[str, Any] | None = None, **frames: DataFrame) -> DataFrame:
    """Return the frame of a stage over some frames, with its parameters; nothing is computed yet."""
    spark = next(iter(frames.values())).sparkSession
    return spark.sql(read_stage(stage), dict(args) if args else None, **frames)


# -- frames and parameters


def empty_frame(spark: SparkSession, columns: Sequence[Column]) -> DataFrame:
    """Return a frame without rows, which Spark knows to be empty while it plans."""
    types = {one.name: one.dataType.simpleString() for one in schema_of(tuple(columns))}
    names = ", ".join(f"cast(null as {kind}) as `{name}`" for name, kind in types.items())
    return spark.sql(f"select {names} where false")


def map_buses(numbers: Mapping[str, int]) -> SparkColumn:
    """Return a number for each bus as a parameter."""
    # Spark does not know the type of a map without entries.
    entries = numbers or {"": -1}
    return F.create_map(*[F.lit(one) for entry in entries.items() for one in entry])


def list_texts(texts: Sequence[str]) -> SparkColumn:
    """Return some texts as a parameter; of none Spark would not know the type, so that an empty text is among them."""
    return F.array(*[F.lit(text) for text in texts or [""]])


# -- texts of users


def quote(text: str) -> str:
    """Return a text as SQL writes it."""
    return f"'{text.translate(_ESCAPES)}'"


def condition(text: str) -> str:
    """Return a condition of the user's, which may end with a comment, as a part of another one."""
    return f"({text}\n)"


def persist(rows: DataFrame) -> DataFrame:
    """Persist a frame and return one of the same rows that stages can take any number of times.

    ``run`` has Spark make a view of each frame and drop it again. With a view Spark also forgets the persisted rows of
    the very same plan, so that the frame itself would be computed anew by each query. A plan on top of it is safe; the
    filter that keeps everything is optimized away.
    """
    return rows.persist().where("true")
