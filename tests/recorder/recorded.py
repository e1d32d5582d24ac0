"""What a journal says, in a few words, and waiting for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jetbus import journal
from jetbus.recorder import Recorder

DEADLINE_S = 20.0


def rows(directory: Path) -> list[dict[str, Any]]:
    """All events, with decoded values and details."""
    return [
        {**row, "value": _loads(row["value"]), "detail": _loads(row["detail"])}
        for row in journal.open(directory).table().to_pylist()
    ]


def told(directory: Path, *, seq: int = 0) -> list[tuple[Any, ...]]:
    """Events from a seq on: what happened, to what, the value; without a path only what happened."""
    return [
        (row["event"], row["path"], row["value"]) if row["path"] is not None else (row["event"],)
        for row in rows(directory)
        if row["seq"] >= seq
    ]


def tree(directory: Path) -> dict[str, Any]:
    """The states that the journal says are on the bus."""
    found = journal.open(directory).as_of().to_pylist()
    return {row["path"]: _loads(row["value"]) for row in found if row["kind"] == "state"}


async def until_tree(recorder: Recorder, expected: dict[str, Any]) -> None:
    """Wait until the journal has this tree."""
    async with asyncio.timeout(DEADLINE_S):
        await recorder.commit()
        while tree(recorder.directory) != expected:
            await asyncio.sleep(0.01)
            await recorder.commit()


def check_chain(directory: Path) -> None:
    """Every seq is there once, and nothing is added twice, or changed or removed that is not there."""
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
