"""The content of recorded journals in short form, and waiting for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jetbus import journal
from jetbus.recorder import Recorder

DEADLINE_S = 20.0


def rows(directory: Path) -> list[dict[str, Any]]:
    """Return all events, with decoded values and details."""
    return [
        {**row, "value": _loads(row["value"]), "detail": _loads(row["detail"])}
        for row in journal.open(directory).table().to_pylist()
    ]


def recorded_events(directory: Path, *, seq: int = 0) -> list[tuple[Any, ...]]:
    """Return events from a seq on as (event, path, value), or (event,) without a path."""
    return [
        (row["event"], row["path"], row["value"]) if row["path"] is not None else (row["event"],)
        for row in rows(directory)
        if row["seq"] >= seq
    ]


def tree(directory: Path) -> dict[str, Any]:
    """Return the states of the last tree in the journal."""
    found = journal.open(directory).as_of().to_pylist()
    return {row["path"]: _loads(row["value"]) for row in found if row["kind"] == "state"}


async def until_tree(recorder: Recorder, expected: dict[str, Any]) -> None:
    """Wait until the last tree of the journal has exactly these states."""
    async with asyncio.timeout(DEADLINE_S):
        await recorder.commit()
        while tree(recorder.directory) != expected:
            await asyncio.sleep(0.01)
            await recorder.commit()


def check_chain(directory: Path) -> None:
    """Check that seqs are consecutive, and that every event fits the tree before it."""
    there: set[str] = set()
    for seq, row in enumerate(rows(directory), 1):
        path, event = row["path"], row["event"]
        assert row["seq"] == seq
        if event in ("start", "stop"):
            there.clear()
        elif event == "add":
            assert path not in there, row
            there.add(path)
        elif event in ("change", "remove"):
            assert path in there, row
            there -= {path} if event == "remove" else set()


def _loads(text: str | None) -> Any:
    return None if text is None else json.loads(text)
