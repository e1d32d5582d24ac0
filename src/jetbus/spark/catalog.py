"""Which tables a directory has: the standard ones, and those that stages of the user's own have made there.

A file beside the manifest remembers the latter, so that readers and later runs know them without the functions that
made them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from jetbus.spark.errors import BadStage
from jetbus.spark.schemas import TABLES, Column, Table

__all__ = ["read_catalog", "with_own"]

FILE = "own_tables.json"


def read_catalog(directory: Path) -> Mapping[str, Table]:
    """Every table of a directory by its name."""
    return {**TABLES, **_own(directory)}


def with_own(directory: Path, own: Mapping[str, Table]) -> Mapping[str, Table]:
    """Remember further tables; gives every table of the directory. One that is there already keeps its columns."""
    before = _own(directory)
    for name, table in own.items():
        known = before.get(name)
        if known is not None and [column[:2] for column in known.columns] != [column[:2] for column in table.columns]:
            was = ", ".join(f"{column.name} {column.type}" for column in known.columns)
            raise BadStage(name, f"its table has other columns already ({was}); give the stage another name")
    told = {**before, **own}
    if told != before:
        fresh = directory / f"{FILE}.new"
        fresh.write_text(json.dumps(told), encoding="utf-8")
        fresh.replace(directory / FILE)
    return {**TABLES, **told}


def _own(directory: Path) -> dict[str, Table]:
    try:
        told = json.loads((directory / FILE).read_bytes())
    except FileNotFoundError:
        return {}
    return {
        name: Table(time, meaning, tuple(Column(*column) for column in columns))
        for name, (time, meaning, columns) in told.items()
    }
