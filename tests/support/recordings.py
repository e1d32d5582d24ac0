"""Recordings to play, written by the real writer with chosen instants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jetbus.journal import Settings, Writer

BEGIN_US = 1_767_225_600_000_000
"""The first of January 2026, midnight in UTC."""


class Moment(NamedTuple):
    """An event at a number of milliseconds after the beginning."""

    ms: float
    event: str
    path: str | None = None
    value: Any = None
    kind: str = "state"
    detail: Any = None


def method(ms: float, event: str, path: str) -> Moment:
    return Moment(ms, event, path, None, "method")


def call(ms: float, path: str, args: Any, **detail: Any) -> Moment:
    return Moment(ms, "call", path, args, "method", detail)


def at_us(ms: float) -> int:
    """Return the instant of a moment in microseconds."""
    return BEGIN_US + round(ms * 1000)


def recording(directory: Path, moments: Iterable[Moment]) -> Path:
    """Write moments as a journal and return its directory."""
    with Writer(directory, Settings(fsync="never", bus="plant"), now_us=lambda: 0) as writer:
        for moment in moments:
            writer.now_us = at_us(moment.ms)
            has_value = moment.path is not None and (moment.kind == "state" or moment.value is not None)
            writer.append(
                moment.event,
                None if moment.path is None else moment.kind,
                moment.path,
                json.dumps(moment.value).encode() if has_value else None,
                "plc#1",
                None if moment.detail is None else json.dumps(moment.detail).encode(),
            )
    return directory


def seen(moments: Sequence[Moment], prefix: str = "") -> list[tuple[str, str, Any]]:
    """Return the events that a fetch yields for these moments."""
    received = ("add", "change", "remove")
    return [(one.event, prefix + one.path, one.value) for one in moments if one.path and one.event in received]


PLANT = [
    Moment(0, "start"),
    Moment(0, "add", "pump/speed", 0),
    Moment(1, "add", "pump/on", False),
    method(2, "add", "pump/run"),
    Moment(20, "change", "pump/on", True),
    *[Moment(30 + 10 * number, "change", "pump/speed", 100 * number) for number in range(1, 6)],
    Moment(90, "remove", "pump/on", True),
    Moment(90, "add", "pump/on", None),
    Moment(95, "add", "valve", {"open": [1, 2.5, "ä"]}),
    Moment(100, "remove", "pump/speed", 500),
]
"""A tenth of a second of a small plant."""
