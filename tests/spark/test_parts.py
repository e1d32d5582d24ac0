"""What a task makes of its part, against the reference: random logs cut anywhere, without Spark and so with many."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from jetbus.spark.clock import Clock, Cut
from jetbus.spark.files import merge_files, named
from jetbus.spark.parts import LINE, SIGNS, STAGES, carried_rows, give, signs_of, write
from jetbus.spark.schemas import TABLES
from jetbus.spark.taking import laid_out, read_part
from jetbus.spark.typed import with_types
from jetbus.spark.windows import SIZES
from spark import reference
from spark.compare import assert_same, rows_of
from spark.logs import ARROW, make_log
from spark.reference import Event, Row

TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
WANTED: dict[str, Callable[[list[Event]], list[Row]]] = {
    "history": reference.history,
    **{name: partial(reference.rollups, table=name) for name in SIZES},
    "availability": reference.availability,
}


def struct_of(table: str) -> Any:
    columns = [(column.name, TYPES[column.type]) for column in TABLES[table].columns]
    return pa.struct([column for column in columns if column[0] not in ("bus", "path")])


TABLE_TYPES = {column.name: TYPES[column.type] for column in TABLES["events"].columns if column.type in TYPES}
PART = pa.schema(
    [
        *[(name, TABLE_TYPES[name]) for name in LINE],
        *[("told", pa.bool_()), ("window", struct_of("rollups_1s")), ("span", struct_of("availability"))],
    ]
)


def brought(batch: Iterable[Event], still_open: dict[str, list[Row]]) -> pa.Table:
    """The rows of a part as Spark brings them together: events, and what is carried of each path."""
    rows: list[Row] = [
        {**event._asdict(), **reference.typed(event.value), "kind": event.kind or "state", "told": False}
        for event in batch
        if event.event in SIGNS
    ]
    rows += [{**row, "ts": row["valid_from"], "kind": "state", "told": True} for row in still_open["history"]]
    rows += [{"bus": row["bus"], "path": row["path"], "window": row} for row in still_open["rollups"]]
    for row in still_open["availability"]:
        sign = {"seq": row["seq"], "ts": row["last_ts"], "kind": row["kind"], "told": True}
        event = "add" if row["kind"] != "state" else None
        rows.append({"bus": row["bus"], "path": row["path"], **sign, "event": event, "span": row})
    return pa.Table.from_pylist(rows, schema=PART)


class Clocks:
    """The clock from batch to batch."""

    def __init__(self) -> None:
        self._last: dict[str, Event] = {}

    def after(self, batch: Iterable[Event]) -> Clock:
        before = {bus: event.ts for bus, event in self._last.items()}
        cuts = []
        for event in batch:
            if event.event in reference.CUTS:
                until_us = reference.known_until(event, self._last.get(event.bus))
                cuts.append(Cut(event.bus, event.seq, until_us, event.event))
            self._last[event.bus] = event
        return Clock(before, {bus: event.ts for bus, event in self._last.items()}, tuple(cuts))


def made(batches: list[list[Event]]) -> dict[str, list[Row]]:
    """All rows of some batches by table, with those that are open at the end."""
    found: dict[str, list[Row]] = {name: [] for name in WANTED}
    still_open: dict[str, list[Row]] = {stage: [] for stage in STAGES}
    clocks = Clocks()
    for batch in batches:
        clock, part = clocks.after(batch), brought(batch, still_open)
        for stage in STAGES:
            still_open[stage] = []
            for rows in give(part.to_batches(), stage=stage, clock=clock):
                for row in rows_of(pa.Table.from_batches([rows])):
                    into = row.pop("into")
                    (still_open[stage] if into == "open" else found[into]).append(row)
    for name in ("history", "availability"):
        found[name] += still_open[name]
    return found


@settings(max_examples=15, deadline=timedelta(minutes=1), derandomize=True)
@given(seed=st.integers(0, 1 << 32), cuts=st.integers(0, 6))
def test_parts_are_those_of_the_reference(seed: int, cuts: int) -> None:
    """However a log is cut into batches, the rows made of it are those that plain Python gives for the whole of it."""
    chance = random.Random(seed)
    log = make_log(chance, 300)
    places = sorted(chance.sample(range(1, len(log)), cuts))
    found = made([log[a:b] for a, b in zip([0, *places], [*places, len(log)], strict=True)])
    for name, make in WANTED.items():
        assert_same(name, found[name], make(log))


def files_of(folder: Path, stage: str, into: str) -> list[Path]:
    return sorted((folder / stage / f"into={into}").rglob("*.parquet"))


def rows_in(files: list[Path]) -> list[Row]:
    return [row for file in files for row in rows_of(pq.ParquetFile(file).read())]


@pytest.fixture
def written(tmp_path: Path) -> tuple[list[Event], list[str]]:
    """A log whose rows a task has written, and the files it told of."""
    log = make_log(random.Random(8), 400)
    part = brought(log, {stage: [] for stage in STAGES})
    return log, write(part, clock=Clocks().after(log), folder=tmp_path)


def test_a_file_counts_when_its_task_has_told_of_it(tmp_path: Path, written: tuple[list[Event], list[str]]) -> None:
    """What a task writes has no name that readers see until it is named, and then holds every row by table and day."""
    log, files = written
    assert files
    assert all(Path(file).name.startswith(".") for file in files)
    named(files)
    assert not any(Path(file).exists() for file in files)
    for name in SIZES:
        assert_same(name, rows_in(files_of(tmp_path, "rollups", name)), reference.rollups(log, name))
    for file in files_of(tmp_path, "rollups", "rollups_1m"):
        days = pc.unique(pc.strftime(pq.ParquetFile(file).read()["window_start"], "day=%Y-%m-%d")).to_pylist()
        assert days == [file.parent.name]


def test_merged_files_have_the_same_rows_in_order_of_path(
    tmp_path: Path, written: tuple[list[Event], list[str]]
) -> None:
    """Files that become one keep their rows, with those of a path next to each other in order of seq."""
    log, files = written
    named(files)
    whole = files_of(tmp_path, "history", "history") + files_of(tmp_path, "history", "open")
    days = [pq.ParquetFile(file).read() for file in merge_files(whole, TABLES["history"], tmp_path / "merged")]
    assert len(days) < len(whole)
    assert_same("history", rows_of(pa.concat_tables(days)), reference.history(log))
    for day in days:
        order = [(row["path"].encode(), row["seq"]) for row in rows_of(day)]
        assert order == sorted(order)


@pytest.mark.parametrize("parts", [1, 3], ids=["one part", "three parts"])
def test_rows_go_on_from_files(tmp_path: Path, parts: int) -> None:
    """Batches of events and what is open from the batch before, laid out for any number of parts, end alike."""
    log = make_log(random.Random(13), 300)
    found: dict[str, list[Row]] = {name: [] for name in WANTED}
    carried: dict[str, list[Path]] = {}
    clocks = Clocks()
    for number, batch in enumerate([log[:90], log[90:200], log[200:]]):
        folder = tmp_path / str(number)
        signs = signs_of(with_types(journal_of(batch)))
        laid = [laid_out([signs], folder, parts), laid_out(carried_rows(carried), folder, parts)]
        files = [file for file in laid if file is not None]
        clock = clocks.after(batch)
        for part in range(parts):
            named(write(read_part(files, part), clock=clock, folder=folder))
        carried = {stage: files_of(folder, stage, "open") for stage in STAGES}
        for name in WANTED:
            stage = "rollups" if name in SIZES else name
            found[name] += rows_in(files_of(folder, stage, name))
    for name in ("history", "availability"):
        found[name] += rows_in(carried[name])
    for name, make in WANTED.items():
        assert_same(name, found[name], make(log))


# -- values by type


def journal_of(log: list[Event]) -> pa.Table:
    """Events as they are read from a journal."""
    columns = zip(*log, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, ARROW, strict=True)], schema=ARROW)


def typed(values: Sequence[str | None]) -> list[Row]:
    """What becomes of some values, documents as Spark reads them."""
    log = [Event("plant", n, 0, "change", "state", "a", value) for n, value in enumerate(values)]
    found = rows_of(with_types(journal_of(log)).select(["num", "text", "flag", "doc"]))
    return [
        {**row, "doc": row["doc"] and VariantVal(row["doc"]["value"], row["doc"]["metadata"]).toPython()}
        for row in found
    ]


documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(st.characters(codec="utf-8"), max_size=80),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=100, deadline=timedelta(minutes=1), derandomize=True)
@given(values=st.lists(documents, min_size=1, max_size=8))
def test_values_have_a_column_of_their_type(values: list[Any]) -> None:
    """Any JSON, however it is mixed, is a number, a text, a flag or a document, and null where it is none of them."""
    texts = [json.dumps(value, ensure_ascii=n % 2 == 0) for n, value in enumerate(values)]
    wanted = [reference.typed(text) for text in texts]
    for found, one in zip(typed(texts), wanted, strict=True):
        assert (found["num"], found["text"], found["flag"]) == (one["num"], one["text"], one["flag"])
        assert (None if found["doc"] is None else plain(found["doc"])) == one["doc"]


def plain(value: Any) -> Any:
    """A document with whole numbers as such: those of more than 64 bits are decimals."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    return int(value) if isinstance(value, Decimal) else value


ODD_VALUES: dict[str, tuple[str | None, Row]] = {
    "no value": (None, {}),
    "null": ("null", {}),
    "a number with blanks": ("3 ", {"num": 3.0}),
    "a number too large": ("1e400", {}),
    "a number with an exponent": ("-1.5E-3", {"num": -0.0015}),
    "half a surrogate": ('"a\\ud800"', {"text": "a?"}),
    "an empty text": ('""', {"text": ""}),
    "a member twice": ('{"a": 1, "a": 2}', {}),
    "no document": ("[1", {}),
    "no number": ("1x", {}),
    "decimals": ("[1.50, 1e2, -0.001, 123456789.5]", {"doc": [1.5, 100.0, -0.001, 123456789.5]}),
    "many members": (json.dumps({f"m{n}": n for n in range(300)}), {"doc": {f"m{n}": n for n in range(300)}}),
    "a long list": (json.dumps(["x" * 70] * 300), {"doc": ["x" * 70] * 300}),
}


def test_odd_values() -> None:
    """Values that are odd, or are no JSON at all, harm no other."""
    values = [value for value, _ in ODD_VALUES.values()]
    for case, found, (_, wanted) in zip(ODD_VALUES, typed(values), ODD_VALUES.values(), strict=True):
        doc = found["doc"]
        is_list = isinstance(doc, list)
        found = {**found, "doc": [float(one) if isinstance(one, Decimal) else one for one in doc] if is_list else doc}
        assert found == {"num": None, "text": None, "flag": None, "doc": None, **wanted}, case
