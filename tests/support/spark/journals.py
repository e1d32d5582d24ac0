"""Journals on disk, written by the journal's own writer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from jetbus.journal import Settings, Writer
from support.spark.reference import Event


def write_events(
    directory: Path, log: Iterable[Event], *, bus: str, segment_events: int = 0, **settings: object
) -> None:
    """Append events of one bus to its journal, in segments of so many events or in one."""
    made = Settings(bus=bus, fsync="never", **settings)  # type: ignore[arg-type]
    writer = Writer(directory, made, now_us=lambda: 0)
    for written, event in enumerate(log, 1):
        writer.now_us = event.ts
        quality = event.quality if event.quality is None or event.quality.startswith("{") else f'"{event.quality}"'
        texts = (event.path, _bytes(event.value), event.peer, _bytes(event.detail))
        writer.append(event.event, event.kind, *texts, event.source_ts, _bytes(quality))
        if segment_events and written % segment_events == 0:
            writer.close()
            writer = Writer(directory, made, now_us=lambda: 0)
    writer.close()


def write_log(root: Path, log: list[Event], *, segment_events: int = 0) -> list[Path]:
    """A journal for each bus of a log; gives their directories."""
    buses = sorted({event.bus for event in log})
    for bus in buses:
        own = [event for event in log if event.bus == bus]
        write_events(root / bus, own, bus=bus, segment_events=segment_events)
    return [root / bus for bus in buses]


def numbers(count: int, *, bus: str = "plant", path: str = "n", begin_us: int = 1_772_323_200_000_000) -> list[Event]:
    """A state that counts, a thousand times a second."""
    return [
        Event(bus, n, begin_us + n * 1000, "change", "state", f"{path}/{n % 7}", str(n), "counter#1")
        for n in range(1, count + 1)
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
