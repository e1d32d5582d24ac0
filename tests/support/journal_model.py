"""Journals written by the real writer, and a model that computes their content event by event in plain Python."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from jetbus.journal import Settings, Writer

BEGIN_US = 1_767_225_600_000_000
"""The first of January 2026, midnight in UTC."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


class Event(NamedTuple):
    """An event to record."""

    ts_us: int
    event: str
    path: str | None = None
    value: str | None = None
    peer: str | None = None
    kind: str | None = None
    detail: str | None = None
    source_us: int | None = None
    quality: str | None = None
    """As its column has it: a word, or an object as JSON text."""


def moment(ts_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=ts_us)


def write(writer: Writer, events: Iterable[Event]) -> None:
    """Append the events; the caller commits."""
    for one in events:
        writer.now_us = one.ts_us
        stamp = (one.source_us, None if one.quality is None else _quote(one.quality))
        if one.event == "change":
            texts = (one.path or "", (one.value or "").encode(), one.peer or "")
            if stamp == (None, None):
                writer.change(*texts)
            else:
                writer.append_described(*texts, *stamp, False)
            continue
        value = None if one.value is None else one.value.encode()
        detail = None if one.detail is None else one.detail.encode()
        writer.append(one.event, one.kind, one.path, value, one.peer, detail, *stamp)


def _quote(quality: str) -> bytes:
    """Return a quality as JSON text."""
    return (quality if quality.startswith("{") else json.dumps(quality)).encode()


def open_writer(directory: Path, **settings: Any) -> Writer:
    """Open a writer that takes its instants from the events."""
    return Writer(directory, Settings(fsync="never", bus=settings.pop("bus", "plant"), **settings), now_us=lambda: 0)


def record(directory: Path, segments: Sequence[Sequence[Sequence[Event]]], **settings: Any) -> None:
    """Write a journal: a list of segments, each a list of batches, each a list of events."""
    for batches in segments:
        with open_writer(directory, **settings) as writer:
            for events in batches:
                write(writer, events)
                assert writer.commit()


def cut(events: Sequence[Event], *sizes: int) -> list[Sequence[Event]]:
    """Cut events into pieces of these sizes, repeatedly."""
    pieces, at, turn = [], 0, 0
    while at < len(events):
        pieces.append(events[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return pieces


def rows(events: Iterable[Event], first_seq: int = 1) -> list[Row]:
    """Return the rows that a reader must return for these events."""
    return [
        {
            "seq": seq,
            "ts": moment(one.ts_us),
            "event": one.event,
            "kind": "state" if one.event == "change" else one.kind,
            "path": one.path,
            "value": one.value,
            "peer": one.peer,
            "detail": one.detail,
            "source_ts": None if one.source_us is None else moment(one.source_us),
            "quality": one.quality,
        }
        for seq, one in enumerate(events, first_seq)
    ]


def read(batches: Iterable[Any]) -> list[Row]:
    """Return the rows of record batches."""
    return [row for batch in batches for row in batch.to_pylist()]


LATEST = ("value", "ts", "seq", "source_ts", "quality")
"""Columns that the last value of an element decides."""


def _unit(detail: str | None) -> str | None:
    unit: str | None = json.loads(detail or "{}").get("schema", {}).get("unit")
    return unit


class Model:
    """A model of the tree, updated event by event."""

    def __init__(self) -> None:
        self._tree: dict[str, Row] = {}

    def feed(self, row: Row) -> None:
        """Apply an event."""
        event, path = row["event"], row["path"]
        if event in ("start", "stop"):
            self._tree.clear()
        elif event == "remove":
            self._tree.pop(path, None)
        elif event == "change" and path in self._tree:
            self._tree[path].update({name: row[name] for name in LATEST})
        elif event == "describe" and path in self._tree:
            self._tree[path].update(detail=row["detail"], unit=_unit(row["detail"]))
        elif event in ("add", "change"):
            self._tree.pop(path, None)
            self._tree[path] = {
                **{name: row[name] for name in ("path", "kind", "peer", "detail", *LATEST)},
                "created_seq": row["seq"],
                "unit": _unit(row["detail"]),
            }

    def tree(self) -> list[Row]:
        """Return the elements in order of creation."""
        return [dict(row) for row in self._tree.values()]


def tree_after(recorded: Iterable[Row]) -> list[Row]:
    """Return the tree after these rows."""
    model = Model()
    for row in recorded:
        model.feed(row)
    return model.tree()


def plant(count: int, *, seed: int = 1, states: int = 20, step_us: int = 1000, begin_us: int = BEGIN_US) -> list[Event]:
    """Return random events of all kinds, as they happen on a bus."""
    rng = random.Random(seed)
    events = [Event(begin_us, "start", detail='{"version":"1"}')]
    there: dict[str, str] = {}
    while len(events) < count:
        ts_us = begin_us + len(events) // 3 * step_us
        path = f"plant/line{rng.randrange(3)}/s{rng.randrange(states)}"
        peer = f"plc#{rng.randrange(4)}"
        chance = rng.random()
        if path not in there:
            there[path] = peer
            detail = rng.choice([None, '{"fetchOnly":true}'])
            kind = rng.choice(["state", "state", "method"])
            events.append(Event(ts_us, "add", path, _value(rng) if kind == "state" else None, peer, kind, detail))
        elif chance < 0.08:
            events.append(Event(ts_us, "remove", path, None, there.pop(path), "state"))
        elif chance < 0.15:
            events.append(Event(ts_us, "set", path, _value(rng), peer, "state", '{"outcome":"ok","us":12}'))
        elif chance < 0.18:
            events.append(Event(ts_us, "peer", None, None, peer, None, '{"transport":"tcp"}'))
        elif chance < 0.19:
            events.append(Event(ts_us, "gap", detail='{"reason":"disk full","missed":3}'))
        elif chance < 0.2:
            events += [Event(ts_us, "stop"), Event(ts_us, "start", detail='{"restart":true}')]
            there.clear()
        else:
            events.append(Event(ts_us, "change", path, _value(rng), there[path]))
    return events[:count]


def _value(rng: random.Random) -> str:
    unit = rng.choice(["C", "bar"])
    return json.dumps(rng.choice([rng.randrange(20), rng.random(), "über", True, None, [1, 2], {"unit": unit, "x": 3}]))
