"""The tables in plain Python, one event after the other: slow, simple, and made in another way than the Spark stages.

Rows are dicts with the columns of the table; times are microseconds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from jetbus.schema import read_schema

Row = dict[str, Any]
CUTS = ("stop", "start", "gap")
SIZES_US = {"1s": 1_000_000, "1m": 60_000_000, "1h": 3_600_000_000}


class Event(NamedTuple):
    """One row of a journal."""

    bus: str
    seq: int
    ts: int
    event: str
    kind: str | None = None
    path: str | None = None
    value: str | None = None
    peer: str | None = None
    detail: str | None = None
    source_ts: int | None = None
    quality: str | None = None
    """As the journal has it: a word, or an object as JSON text."""

    @property
    def level(self) -> str | None:
        """The word of its quality."""
        is_object = self.quality is not None and self.quality.startswith("{")
        return json.loads(self.quality or "")["level"] if is_object else self.quality


def by_bus(log: Iterable[Event]) -> Iterator[list[Event]]:
    buses: dict[str, list[Event]] = {}
    for event in log:
        buses.setdefault(event.bus, []).append(event)
    yield from buses.values()


def last_ts(log: Iterable[Event]) -> dict[str, int]:
    return {events[-1].bus: events[-1].ts for events in by_bus(log)}


def known_until(event: Event, before: Event | None) -> int:
    """Until when the values before a cut are known."""
    if event.event == "stop":
        return event.ts
    last = before.ts if before else event.ts
    since = json.loads(event.detail or "{}").get("since")
    if since is None:
        return last
    since_us = round(datetime.fromisoformat(since).timestamp() * 1_000_000)
    return min(max(since_us, last), event.ts)


# -- descriptions

DESCRIBED = ("schema", "unit", "minimum", "maximum", "normal_low", "normal_high", "stale_s")


def described(detail: str | None) -> Row:
    """Members of a description; one that is malformed counts for nothing."""
    schema = json.loads(detail or "{}").get("schema")
    members = schema if isinstance(schema, dict) else {}
    numbers = {name: members.get(name) for name in ("minimum", "maximum")}
    low, high = members.get("normal", (None, None))
    is_range = low is None or high is None or low <= high
    return {
        "schema": schema,
        "unit": members.get("unit"),
        **{name: float(number) if isinstance(number, int | float) else None for name, number in numbers.items()},
        "normal_low": float(low) if is_range and low is not None else None,
        "normal_high": float(high) if is_range and high is not None else None,
        "stale_s": float(members["stale"]) if members.get("stale", 0) > 0 else None,
    }


def misfit(schema: Any, value: str | None) -> str | None:
    """Name the member of a schema that a value does not fit, by the words of the daemon's own check."""
    found = None if value is None else read_schema(schema).find_mismatch(json.loads(value))
    words = {"is of type": "type", "not one of": "enum", "below": "minimum", "above": "maximum"}
    return None if found is None else next(name for word, name in words.items() if word in found.reason)


def is_strange(value: Row) -> bool:
    """Return True for a number outside of the range that its description calls normal."""
    low, number, high = value["normal_low"], value["num"], value["normal_high"]
    return number is not None and ((low is not None and number < low) or (high is not None and number > high))


class Descriptions:
    """Descriptions of the states of one bus, event by event."""

    def __init__(self) -> None:
        self._known: dict[str, Row] = {}

    def see(self, event: Event) -> Row:
        """The description that is valid from this event on."""
        if event.event in CUTS:
            self._known.clear()
        elif event.event in ("add", "describe", "remove"):
            self._known[event.path or ""] = described(None if event.event == "remove" else event.detail)
        return self._known.get(event.path or "") or dict.fromkeys(DESCRIBED)


# -- events and history


def typed(value: str | None) -> Row:
    decoded = None if value is None else json.loads(value)
    is_number = isinstance(decoded, int | float) and not isinstance(decoded, bool)
    return {
        "num": float(decoded) if is_number and decoded is not None else None,
        "text": decoded if isinstance(decoded, str) else None,
        "flag": decoded if isinstance(decoded, bool) else None,
        "doc": decoded if isinstance(decoded, dict | list) else None,
    }


def events(log: list[Event]) -> list[Row]:
    return [{**event._asdict(), "quality": event.level, **typed(event.value)} for event in log]


def history(log: list[Event]) -> list[Row]:
    rows = []
    for one_bus in by_bus(log):
        open_rows: dict[str, Row] = {}
        descriptions = Descriptions()

        def end(path: str, ts: int, event: str, open_rows: dict[str, Row] = open_rows) -> None:
            row = open_rows.pop(path, None)
            if row is not None:
                row.update(valid_to=ts, ended_by=event)

        before = None
        for event in one_bus:
            about = descriptions.see(event)
            if event.event in CUTS:
                for path in list(open_rows):
                    end(path, known_until(event, before), event.event)
            elif event.event in ("add", "change", "remove") and event.kind == "state":
                assert event.path is not None
                end(event.path, event.ts, event.event)
                if event.event != "remove":
                    row = {
                        "bus": event.bus,
                        "path": event.path,
                        "seq": event.seq,
                        "event": event.event,
                        "valid_from": event.ts,
                        "valid_to": None,
                        "ended_by": None,
                        "value": event.value,
                        "peer": event.peer,
                        "source_ts": event.source_ts,
                        "quality": event.level,
                        "unit": about["unit"],
                        "misfit": misfit(about["schema"], event.value),
                        **typed(event.value),
                    }
                    del row["doc"]
                    rows.append(row)
                    open_rows[event.path] = row
            before = event
    return rows


# -- rollups


def rollups(log: list[Event]) -> list[Row]:
    return [row for size in SIZES_US for row in rollups_of(log, size)]


def rollups_of(log: list[Event], size: str) -> list[Row]:
    size_us = SIZES_US[size]
    ends = last_ts(log)
    paths: dict[tuple[str, str], list[Row]] = {}
    for row in history(log):
        x = row["num"] if row["flag"] is None else float(row["flag"])
        if x is not None and row["quality"] != "bad":
            paths.setdefault((row["bus"], row["path"]), []).append({**row, "x": x})
    rows = []
    for (bus, path), values in paths.items():
        starts = {value["valid_from"] // size_us * size_us for value in values}
        complete = sorted(start for start in starts if start + size_us <= ends[bus])
        rows += [
            {"bus": bus, "path": path, "size": size, **_window(values, start, start + size_us)} for start in complete
        ]
    return rows


def _window(values: list[Row], start: int, end: int) -> Row:
    inside = [value for value in values if start <= value["valid_from"] < end]
    came = [value["x"] for value in inside]
    known_s, good_s, area = 0.0, 0.0, 0.0
    for value in values:
        until = end if value["valid_to"] is None else min(value["valid_to"], end)
        weight_s = max(0, until - max(value["valid_from"], start)) / 1e6
        known_s += weight_s
        good_s += weight_s if value["quality"] in (None, "good") else 0.0
        area += weight_s * value["x"]
    return {
        "window_start": start,
        "window_end": end,
        "count": len(came),
        "min": min(came),
        "max": max(came),
        "mean": statistics.fmean(came),
        "time_mean": area / known_s if known_s else None,
        "known_s": known_s,
        "good_s": good_s,
        "first": came[0],
        "last": came[-1],
        "stddev": statistics.stdev(came) if len(came) > 1 else None,
        "unit": inside[-1]["unit"],
    }


# -- elements


def elements(log: list[Event]) -> list[Row]:
    rows = []
    for one_bus in by_bus(log):
        valid: dict[str, Row] = {}
        before = None
        for event in one_bus:
            path = event.path or ""
            if event.event in CUTS:
                for row in valid.values():
                    row["valid_to"] = known_until(event, before)
                valid.clear()
            elif event.event in ("add", "describe", "remove"):
                if path in valid:
                    valid.pop(path)["valid_to"] = event.ts
                if event.event != "remove":
                    schema = json.loads(event.detail or "{}").get("schema")
                    valid[path] = {
                        "bus": event.bus,
                        "path": path,
                        "kind": event.kind,
                        "seq": event.seq,
                        **described(event.detail),
                        "schema": schema if isinstance(schema, str) else schema and compact(schema),
                        "valid_from": event.ts,
                        "valid_to": None,
                    }
                    rows.append(valid[path])
            before = event
    return [row for row in rows if row["schema"] is not None]


def compact(schema: Row) -> str:
    """A schema as Spark writes it."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


# -- availability


def availability(log: list[Event]) -> list[Row]:
    rows = []
    for one_bus in by_bus(log):
        there: dict[str, Row] = {}

        def end(path: str, ts: int, event: str, there: dict[str, Row] = there) -> None:
            row = there.pop(path, None)
            if row is not None:
                sign(row, ts)
                row.update(until=ts, up_s=(ts - row["since"]) / 1e6, ended_by=event)

        before = None
        for event in one_bus:
            path = event.path or ""
            if event.event in CUTS:
                for known in list(there):
                    end(known, known_until(event, before), event.event)
            elif event.event == "remove":
                end(path, event.ts, "remove")
            elif event.event == "change" and path in there:
                sign(there[path], event.ts)
                there[path]["last_ts"] = event.ts
                there[path]["changes"] += 1
            elif event.event in ("add", "change"):
                end(path, event.ts, "add")
                there[path] = {
                    "bus": event.bus,
                    "path": path,
                    "kind": event.kind,
                    "owner": event.peer,
                    "seq": event.seq,
                    "since": event.ts,
                    "until": None,
                    "up_s": None,
                    "changes": int(event.event == "change"),
                    "last_ts": event.ts,
                    "quiet_s": None,
                    "ended_by": None,
                }
                rows.append(there[path])
            before = event
    return rows


def sign(row: Row, ts: int) -> None:
    """A sign of life, or its end: how long was it quiet before?"""
    row["quiet_s"] = max(row["quiet_s"] or 0.0, (ts - row["last_ts"]) / 1e6)


# -- requests


def requests(log: list[Event]) -> list[Row]:
    ends = last_ts(log)
    groups: dict[tuple[str, int, str, str, str], list[Row]] = {}
    for event in log:
        if event.event in ("set", "call"):
            minute = event.ts // 60_000_000 * 60_000_000
            peer = event.peer or ""
            caller = peer.rpartition("#")[0] or peer
            if minute + 60_000_000 <= ends[event.bus]:
                key = (event.bus, minute, event.event, event.path or "", caller)
                groups.setdefault(key, []).append(json.loads(event.detail or "{}"))
    rows = []
    for (bus, minute, event_name, path, caller), details in groups.items():
        us = sorted(detail["us"] for detail in details)
        errors = sum(detail["outcome"] == "error" for detail in details)
        rows.append(
            {
                "bus": bus,
                "window_start": minute,
                "event": event_name,
                "path": path,
                "caller": caller,
                "count": len(us),
                "errors": errors,
                "error_rate": errors / len(us),
                "us_min": us[0],
                "us_mean": statistics.fmean(us),
                "us_max": us[-1],
                **{f"us_p{p}": percentile(us, p / 100) for p in (50, 90, 99)},
            }
        )
    return rows


def percentile(ordered: list[int], share: float) -> float:
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


# -- alarms


class AlarmRule(NamedTuple):
    """An alarm as plain functions: of the path, and of the typed value with its description."""

    name: str
    about: Callable[[str], bool]
    when: Callable[[Row], bool]
    clear: Callable[[Row], bool] | None
    hold_us: int
    is_stale: bool = False


class _Watch:
    """One alarm at one path."""

    def __init__(self, alarm: AlarmRule, bus: str, path: str) -> None:
        self.alarm = alarm
        self.place = {"alarm": alarm.name, "severity": "alarm", "bus": bus, "path": path}
        self.begun: tuple[int, int, str | None, Row] | None = None
        self.raised_at: int | None = None
        self.rows: list[Row] = []

    def pass_time(self, now: int) -> None:
        """Raise what has held long enough by now."""
        if self.begun is None or self.raised_at is not None:
            return
        ts, seq, value, about = self.begun
        due = ts + self.alarm.hold_us + (round(about["stale_s"] * 1e6) if self.alarm.is_stale else 0)
        if now >= due:
            self.raised_at = due
            self._tell("raised", due, seq, value, about["unit"])

    def see(self, ts: int, seq: int, value: str | None, about: Row, alive: bool) -> None:
        """A value, or the end of all values."""
        self.pass_time(ts)
        seen = {**typed(value), **about}
        on = alive and self.alarm.when(seen)
        off = not alive or self.alarm.clear is None or self.alarm.clear(seen)
        if not on or self.alarm.is_stale:
            self.begun = None
            if off and self.raised_at is not None:
                self._tell("cleared", ts, seq, *((value, about["unit"]) if alive else (None, None)))
                self.raised_at = None
        if on:
            self.begun = self.begun or (ts, seq, value, about)
            self.pass_time(ts)

    def _tell(self, what: str, ts: int, seq: int, value: str | None, unit: str | None) -> None:
        cells = {"what": what, "ts": ts, "seq": seq, "value": value, "unit": unit, "raised_at": self.raised_at}
        self.rows.append({**self.place, **cells})


def alarms(log: list[Event], wanted: list[AlarmRule]) -> list[Row]:
    watches: dict[tuple[str, str, str], _Watch] = {}
    for one_bus in by_bus(log):
        before, descriptions = None, Descriptions()
        for event in one_bus:
            about = descriptions.see(event)
            if event.event in CUTS:
                for (_, bus, _), watch in watches.items():
                    if bus == event.bus:
                        watch.see(known_until(event, before), event.seq, None, about, alive=False)
            elif event.event in ("add", "change", "remove") and event.kind == "state" and event.path:
                for alarm in wanted:
                    if alarm.about(event.path):
                        key = (alarm.name, event.bus, event.path)
                        watch = watches.setdefault(key, _Watch(alarm, event.bus, event.path))
                        watch.see(event.ts, event.seq, event.value, about, event.event != "remove")
            before = event
    ends = last_ts(log)
    for (_, bus, _), watch in watches.items():
        watch.pass_time(ends[bus])
    return [row for watch in watches.values() for row in watch.rows]
