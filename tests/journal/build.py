"""Journals to read, made by the real writer, and what they must say, told event by event in plain Python."""

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
    """One event as it is recorded."""

    ts_us: int
    event: str
    path: str | None = None
    value: str | None = None
    peer: str | None = None
    kind: str | None = None
    detail: str | None = None


def moment(ts_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=ts_us)


def write(writer: Writer, events: Iterable[Event]) -> None:
    """Append the events; the caller commits."""
    for one in events:
        writer.now_us = one.ts_us
        if one.event == "change":
            writer.change(one.path or "", (one.value or "").encode(), one.peer or "")
            continue
        value = None if one.value is None else one.value.encode()
        detail = None if one.detail is None else one.detail.encode()
        writer.append(one.event, one.kind, one.path, value, one.peer, detail)


def open_writer(directory: Path, **settings: Any) -> Writer:
    """A writer whose instants are those of its events."""
    return Writer(directory, Settings(fsync="never", bus=settings.pop("bus", "plant"), **settings), now_us=lambda: 0)


def record(directory: Path, segments: Sequence[Sequence[Sequence[Event]]], **settings: Any) -> None:
    """Write a journal: a list of segments, each a list of batches, each a list of events."""
    for batches in segments:
        with open_writer(directory, **settings) as writer:
            for events in batches:
                write(writer, events)
                assert writer.commit()


def cut(events: Sequence[Event], *sizes: int) -> list[Sequence[Event]]:
    """Events in pieces of these sizes, again and again."""
    pieces, at, turn = [], 0, 0
    while at < len(events):
        pieces.append(events[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return pieces


def rows(events: Iterable[Event], first_seq: int = 1) -> list[Row]:
    """What a reader must give for these events."""
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
        }
        for seq, one in enumerate(events, first_seq)
    ]


def read(batches: Iterable[Any]) -> list[Row]:
    """The rows of record batches."""
    return [row for batch in batches for row in batch.to_pylist()]


class Model:
    """The tree of a bus, event by event."""

    def __init__(self) -> None:
        self._tree: dict[str, Row] = {}

    def feed(self, row: Row) -> None:
        """Go on with the next event."""
        event, path = row["event"], row["path"]
        if event in ("start", "stop"):
            self._tree.clear()
        elif event == "remove":
            self._tree.pop(path, None)
        elif event == "change" and path in self._tree:
            self._tree[path].update(value=row["value"], ts=row["ts"], seq=row["seq"])
        elif event in ("add", "change"):
            self._tree.pop(path, None)
            self._tree[path] = {
                **{name: row[name] for name in ("path", "kind", "value", "peer", "detail", "ts", "seq")},
                "created_seq": row["seq"],
            }

    def tree(self) -> list[Row]:
        """The elements in order of creation."""
        return [dict(row) for row in self._tree.values()]


def tree_after(recorded: Iterable[Row]) -> list[Row]:
    """The tree after these rows."""
    model = Model()
    for row in recorded:
        model.feed(row)
    return model.tree()


def plant(count: int, *, seed: int = 1, states: int = 20, step_us: int = 1000, begin_us: int = BEGIN_US) -> list[Event]:
    """Something of everything that happens on a bus, as many events as asked for."""
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
