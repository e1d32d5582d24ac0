"""Stages as SQL text.

A stage is one text over named frames, made of nested queries:

    values = select("{events}", "bus", "path", "num", where="event = 'change'")
    run(select(values, "path", "max(num) as highest", group="path"), events=events)

Spark parses and analyses it once. A chain of DataFrame methods says the same, but Spark analyses the plan again after
each of them, and each argument is a call to Java; in a batch of a few events that takes longer than its rows do.

Frames are named in braces, so braces in whatever comes from users are doubled: by ``quote`` for a text that becomes a
value, by ``condition`` for SQL of the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

__all__ = ["condition", "join", "persist", "quote", "run", "select", "write_map"]

_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "$": "\\u0024", "{": "{{", "}": "}}"})
"""Spark replaces ${NAME} by settings, even within a text."""


def select(source: str, *columns: str, where: str = "", group: str = "") -> str:
    """Return a query for columns of another query, or of a frame that is named in braces."""
    text = f"select {', '.join(columns)} from ({source})"  # noqa: S608 - users' texts go through quote or condition
    return text + (f" where {where}" if where else "") + (f" group by {group}" if group else "")


def join(source: str, other: str, *columns: str, on: str, kind: str = "left", hint: str = "") -> str:
    """Return a query for columns of two queries, ``part`` and ``other``; a hint says how Spark joins the latter."""
    words = f"/*+ {hint}(other) */ " if hint else ""
    sources = f"({source}) part {kind} join ({other}) other on {on}"
    return f"select {words}{', '.join(columns)} from {sources}"  # noqa: S608 - as above


def quote(text: str) -> str:
    """Return a text as SQL writes it."""
    return f"'{text.translate(_ESCAPES)}'"


def condition(text: str) -> str:
    """Return a condition of the user's, which may end with a comment, as a part of another one."""
    doubled = text.replace("{", "{{").replace("}", "}}")
    return f"({doubled}\n)"


def write_map(entries: Mapping[str, str]) -> str:
    """Return a map from texts to expressions."""
    return f"map({', '.join(f'{quote(key)}, {value}' for key, value in entries.items())})"


def run(text: str, **frames: DataFrame) -> DataFrame:
    """Return the frame of a query; nothing is computed yet."""
    spark = next(iter(frames.values())).sparkSession
    return spark.sql(text, None, **frames)


def persist(rows: DataFrame) -> DataFrame:
    """Persist a frame; gives a frame of the same rows that queries can name any number of times.

    ``run`` has Spark make a view of each frame and drop it again. With a view Spark also forgets what is persisted of
    the very same plan, so that the frame itself would be computed anew by each query. A plan on top of it is safe; the
    filter that keeps everything is optimized away.
    """
    return rows.persist().where("true")
