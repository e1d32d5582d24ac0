"""Random event logs: what daemons might have written, rich in restarts, gaps, equal times and odd values."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from jetbus.spark.schemas import JOURNAL, schema_of
from support.spark.reference import Event

BUSES = ("plant", "lab")
STATES = ("a", "a/b", "pump/1/speed", "pump/2/speed", "ünï cödé")
METHODS = ("pump/start", "reset")
PEERS = ("pump#1", "screen#12", "#3")
BEGIN_US = 1_772_323_190_000_000
STEPS_US = (0, 0, 0, 0, 1, 7, 1000, 250_000, 999_999, 1_000_000, 3_500_000, 20_000_000, 61_000_000)
REST_US = 3_000_000_000
"""Now and then nothing happens for a while."""
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2.5, 7, 1e-3, 80.5, 91, 1e6, 1000000.001, 123456789012345678, -0.0),
    *(True, False, None, "", "text", 'quoted "text" \\ and \n more', "ÄÖÜ", "true", "17"),
    *({"unit": "C", "x": 1}, [1, "two", None], {}),
)
ARROW = pa.schema(
    [
        ("bus", pa.string()),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        *[(column.name, pa.string()) for column in JOURNAL[3:-2]],
        ("source_ts", pa.timestamp("us", "UTC")),
        ("quality", pa.string()),
    ]
)

_EVENTS = (
    *(("change",) * 60 + ("add",) * 10 + ("remove",) * 6 + ("set",) * 10 + ("call",) * 8),
    *("peer", "gone", "stop", "start", "gap", "describe", "describe", "past"),
)
QUALITIES = (*(None,) * 6, "good", "uncertain", "bad", '{"level":"bad","reason":"cable"}')
SCHEMAS: tuple[Any, ...] = (
    None,
    {"unit": "rpm", "minimum": 0, "maximum": 3000.5, "normal": [5, None], "stale": 2.5},
    {"unit": "°C", "title": 'a "title"', "normal": [-10, 60], "maximum": "wide"},
    {"normal": [7, 1], "stale": 0, "unit": None, "type": ["number", "null"], "maximum": 50},
    {"type": "integer", "enum": [0, 1, 7, 91, None]},
    {"enum": [False, "text", "ÄÖÜ", 2.5, "n"], "type": "no such type"},
    {"type": ["string", "boolean"]},
    "a text",
)


def make_log(chance: random.Random, size: int) -> list[Event]:
    """A log of two buses, mixed as it comes."""
    seqs, clocks = dict.fromkeys(BUSES, 0), dict.fromkeys(BUSES, BEGIN_US)
    log = []
    for _ in range(size):
        bus, name = chance.choice(BUSES + BUSES[:1]), chance.choice(_EVENTS)
        seqs[bus] += 1
        before_us = clocks[bus]
        clocks[bus] += REST_US if chance.random() < 0.005 else chance.choice(STEPS_US)
        value = chance.choice((chance.choice(VALUES), round(chance.gauss(40, 50), 3)))
        columns = _columns(name, chance.randrange(100), value, before_us, clocks[bus])
        log.append(Event(bus, seqs[bus], clocks[bus], name, **columns))
    return log


def _columns(name: str, pick: int, value: Any, before_us: int, now_us: int) -> dict[str, Any]:
    peer = PEERS[pick % len(PEERS)]
    if name in ("add", "remove") and pick % 5 == 0:
        return {"kind": "method", "path": METHODS[pick % len(METHODS)], "peer": peer}
    if name in ("add", "change", "remove", "describe", "past"):
        shown = None if name in ("remove", "describe") else json.dumps(value, ensure_ascii=pick % 2 == 0)
        state: dict[str, Any] = {"kind": "state", "path": STATES[pick % len(STATES)], "value": shown, "peer": peer}
        if name in ("add", "describe") and (schema := SCHEMAS[pick % len(SCHEMAS)]) is not None:
            state["detail"] = json.dumps({"schema": schema})
        if name in ("add", "change"):
            state |= {"source_ts": before_us if pick % 4 == 0 else None, "quality": QUALITIES[pick % len(QUALITIES)]}
        return state
    if name in ("set", "call"):
        path = (STATES if name == "set" else METHODS)[pick % 2]
        detail = {"outcome": ("ok", "ok", "error")[pick % 3], "us": pick * pick}
        return {"path": path, "value": json.dumps(value), "peer": peer, "detail": json.dumps(detail)}
    if name == "gap":
        since = datetime.fromtimestamp((before_us + now_us) // 2 / 1e6, UTC).isoformat(timespec="microseconds")
        return {"detail": json.dumps({"reason": "disk full", "missed": pick, **({"since": since} if pick % 3 else {})})}
    return {"peer": peer} if name in ("peer", "gone") else {}


@st.composite
def cut_logs(draw: st.DrawFn) -> tuple[list[Event], list[list[Event]]]:
    """A log, and the same log cut into batches; made from a seed, since the simplest log is no help to anybody."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    log = make_log(chance, 600)
    places = sorted(chance.sample(range(1, len(log)), 2))
    return log, [log[a:b] for a, b in zip([0, *places], [*places, len(log)], strict=True)]


def frame(spark: SparkSession, log: list[Event]) -> DataFrame:
    """A log as Spark reads it from a journal."""
    columns: list[tuple[Any, ...]] = list(zip(*log, strict=True)) or [() for _ in ARROW]
    table = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, ARROW, strict=True)], schema=ARROW
    )
    return spark.createDataFrame(table, schema_of(JOURNAL))
