"""Stages of the user's own: functions of Python files, named in a TOML file; their rows become tables.

    [stage.power]
    file = "power.py"           beside the TOML file, unless it is an absolute path
    function = "power"          takes the events of a batch as a frame, gives a frame; by default the stage's name
    carry = "totals"            a function that returns the rows for the next batch, in place of those before
    time = "ts"                 the column with the day by which rows are kept; by default ts
    publish = true              show the newest row of each path as a state, where the pipeline publishes

The table has the name of the stage and is committed together with all others, each batch once. Its columns are known
before anything runs, by asking the function about no events at all.

With ``carry`` both functions take two frames, the events and the rows that were carried. The first batch has none of
these: the second frame is then None, and from the rows that ``carry`` gives for it follow the columns that are carried.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.entries import read_entries
from jetbus.spark.schemas import CARRIED, DOC, TABLES, Column, Table
from jetbus.spark.spark_errors import BadStage
from jetbus.spark.sql_text import empty_frame

__all__ = ["OwnStage", "read_stages"]

STAGES_MAX = 100
"""Stages in one file."""

_WORDS: dict[str, type] = {"file": str, "function": str, "carry": str, "time": str, "publish": bool}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TAKEN = (*TABLES, *CARRIED, "checkpoint", "pipeline", "query", "day")
_CASTS = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}
_TYPES = ("string", "bigint", "double", "boolean", "timestamp")


StageFunction = Callable[..., DataFrame]


@dataclass(frozen=True)
class OwnStage:
    """One stage of a file."""

    name: str
    function: StageFunction
    table: Table
    publish: bool = False
    carry: StageFunction | None = None
    carried: Table | None = None

    @property
    def carried_name(self) -> str:
        """The table of the rows that are carried."""
        return f"carried_{self.name}"

    @property
    def tables(self) -> dict[str, Table]:
        """The tables that the stage writes, by name."""
        return {self.name: self.table, **({} if self.carried is None else {self.carried_name: self.carried})}

    def run(self, events: DataFrame, carried: DataFrame | None) -> DataFrame:
        """Make the rows of its table."""
        rows = self.function(events) if self.carry is None else self.function(events, carried)
        return _cast(rows, self.table)

    def run_carry(self, events: DataFrame, carried: DataFrame | None) -> DataFrame:
        """Make the rows that the next batch is given."""
        if self.carry is None or self.carried is None:
            raise BadStage(self.name, "nothing is carried by it; name a function with carry")
        return _cast(self.carry(events, carried), self.carried)


def _cast(rows: DataFrame, table: Table) -> DataFrame:
    return rows.select([F.col(column.name).cast(column.type).alias(column.name) for column in table.columns])


# -- reading a file


def read_stages(file: str | Path, spark: SparkSession) -> tuple[OwnStage, ...]:
    """Read the stages of a TOML file, with their tables."""
    entries = read_entries(file, "stage", _WORDS, BadStage, most=STAGES_MAX, instead="let one function do more")
    nothing = empty_frame(spark, (*TABLES["events"].columns, DOC))
    return tuple(_read_stage(name, entry, Path(file).parent, nothing) for name, entry in entries.items())


def _read_stage(name: str, entry: dict[str, Any], folder: Path, nothing: DataFrame) -> OwnStage:
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise BadStage(name, "its table cannot have that name; take small letters, digits and _, and no known table's")
    if "file" not in entry:
        raise BadStage(name, 'it needs the file of its function; add file = "my_stage.py"')
    module = _module(name, folder / entry["file"])
    function = _function(name, module, entry.get("function", name))
    carry = None if "carry" not in entry else _function(name, module, entry["carry"])
    publish = entry.get("publish", False)
    # As in the first batch: no events, and nothing carried.
    given = (nothing,) if carry is None else (nothing, None)
    table = _table(name, function, given, entry.get("time", "ts"), publish=publish)
    carried = None if carry is None else Table(None, f"Carried by the stage {name}.", _columns(name, carry, given))
    return OwnStage(name, function, table, publish, carry, carried)


def _module(name: str, file: Path) -> ModuleType:
    try:
        return _load(f"jet_stage_{name}", file)
    except Exception as problem:
        raise BadStage(name, f"{str(file)!r} cannot be loaded: {type(problem).__name__}: {problem}") from problem


def _function(name: str, module: ModuleType, wanted: str) -> StageFunction:
    found = getattr(module, wanted, None)
    if not callable(found):
        raise BadStage(name, f"there is no function {wanted!r} in {str(module.__file__)!r}")
    return found  # type: ignore[no-any-return]


def _load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Before it runs, as an import does: dataclasses look for their module there.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    # Tasks on other machines have no such file: its functions travel with the job.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _columns(name: str, function: StageFunction, given: tuple[DataFrame | None, ...]) -> tuple[Column, ...]:
    """Find the columns of a function, by its result for no events."""
    try:
        # With no events Spark only analyses the plan, unless the function itself collects rows.
        rows = function(*given)
        fields = [(field.name, field.dataType.simpleString()) for field in rows.schema]
    except Exception as problem:
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else ""
        raise BadStage(name, f"its function fails without events: {type(problem).__name__}: {first}") from problem
    columns = tuple(Column(column, _CASTS.get(kind, kind), "") for column, kind in fields)
    for column in columns:
        if column.type not in _TYPES:
            raise BadStage(name, f"column {column.name!r} is a {column.type}; cast it to one of {', '.join(_TYPES)}")
        if column.name == "day":
            raise BadStage(name, "a column cannot be named 'day'; tables have one of their own")
    return columns


def _table(
    name: str, function: StageFunction, given: tuple[DataFrame | None, ...], time: str, *, publish: bool
) -> Table:
    columns = _columns(name, function, given)
    types = {column.name: column.type for column in columns}
    if types.get(time) != "timestamp":
        raise BadStage(name, f"there is no column {time!r} of type timestamp, by whose day rows are kept; set time")
    if "path" not in types and "seq" not in types:
        raise BadStage(name, "there is neither a column 'path' nor 'seq', by which rows are kept in order; add one")
    if publish and types.get("path") != "string":
        raise BadStage(name, "there is no column 'path' of type string, which says where each row is to be shown")
    return Table(time, (function.__doc__ or f"Made by the stage {name}.").strip().splitlines()[0], columns)
