"""Entries of TOML files that users write, such as ``[alarm.hot]``, and conditions in SQL within them.

Whatever is wrong with an entry is said with its name, before anything runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.schemas import Column, schema_of
from jetbus.spark.spark_errors import BadOption

__all__ = ["check_condition", "read_entries"]


def read_entries(
    file: str | Path,
    kind: str,
    words: Mapping[str, type],
    error: type[BadOption],
    *,
    most: int,
    instead: str,
    option: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the entries of a kind by name, at most ``most``; ``instead`` says what to do if there are more.

    ``words`` are the keys that an entry may have and their types. Errors of an entry are of type ``error``, those of
    the file name the ``option`` that it was given as: by default ``alarms`` for the kind ``alarm``.
    """
    option = option or f"{kind}s"
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadOption(option, f"cannot read {str(file)!r}: {problem.strerror}") from problem
    except ValueError as problem:  # neither UTF-8 nor TOML
        raise BadOption(option, f"{str(file)!r} is not TOML: {problem}") from problem
    entries = content.get(kind)
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise BadOption(option, f"{str(file)!r} has no {option}; begin each with [{kind}.NAME]")
    if len(entries) > most:
        raise BadOption(option, f"{len(entries)} {option} are more than {most}; {instead}")
    for name, entry in entries.items():
        for word, value in entry.items():
            if word not in words:
                raise error(name, f"there is no {word!r}; there are {', '.join(words)}")
            if not isinstance(value, words[word]):
                wanted = "text in quotes" if words[word] is str else "true or false"
                raise error(name, f"{word} takes {wanted}, not {value!r}")
    return entries


def check_condition(
    spark: SparkSession, columns: tuple[Column, ...], name: str, word: str, text: str, error: type[BadOption]
) -> None:
    """Refuse a condition of an entry that Spark does not understand, before anything runs."""
    try:
        # Over an empty frame Spark analyses the condition, and runs no job.
        kind = spark.createDataFrame([], schema_of(columns)).select(F.expr(text)).schema[0].dataType.simpleString()
    except Exception as problem:
        first = str(problem).strip().splitlines()[0]
        raise error(name, f"{word} = {text!r} is not understood: {first}") from problem
    if kind != "boolean":
        raise error(name, f"{word} = {text!r} is a {kind}, not a condition")
