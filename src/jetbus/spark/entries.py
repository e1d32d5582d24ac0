"""Entries of TOML files with errors of the Spark side, and checks of the conditions in SQL within them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus import entries
from jetbus.entries import Words
from jetbus.spark.schemas import Column
from jetbus.spark.spark_errors import BadOption
from jetbus.spark.sql_text import empty_frame

__all__ = ["check_condition", "read_entries", "translate_errors"]


def read_entries(
    file: str | Path,
    kind: str,
    words: Words,
    error: type[BadOption],
    *,
    most: int,
    instead: str,
    option: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the entries of a kind by name, as ``jetbus.entries`` does, with errors of the Spark side.

    Errors of an entry are of type ``error``, those of the file name the ``option`` that it was given as: by default
    ``alarms`` for the kind ``alarm``.
    """
    with translate_errors(error, option or f"{kind}s"):
        return entries.read_entries(file, kind, words, most=most, instead=instead, plural=option)


@contextmanager
def translate_errors(error: type[BadOption], option: str) -> Iterator[None]:
    """Raise errors of an entry as ``error`` with its name, those of the file with the name of an option."""
    try:
        yield
    except entries.BadEntry as problem:
        named = BadOption(option, problem.problem) if problem.name is None else error(problem.name, problem.problem)
        raise named from problem


def check_condition(
    spark: SparkSession, columns: tuple[Column, ...], name: str, word: str, text: str, error: type[BadOption]
) -> None:
    """Refuse a condition of an entry that Spark does not understand, before anything runs."""
    try:
        # Over an empty frame Spark analyses the condition, and runs no job.
        kind = empty_frame(spark, columns).select(F.expr(text)).schema[0].dataType.simpleString()
    except Exception as problem:
        first = str(problem).strip().splitlines()[0]
        raise error(name, f"{word} = {text!r} is not understood: {first}") from problem
    if kind != "boolean":
        raise error(name, f"{word} = {text!r} is a {kind}, not a condition")
