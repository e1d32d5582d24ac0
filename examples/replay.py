"""Record a bus for a few seconds, play the recording onto another bus, and compare what both were told.

python examples/replay.py [--speed 1] [--prefix replay/]

Everything is started by the example itself: two daemons on free ports, a small plant on the first, a recorder on each.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import jetbus
from jetbus import journal
from jetbus.player import Player
from jetbus.recorder import Recorder
from jetbus.testing import running_daemon

STEPS = 40
STEP_S = 0.05

Event = tuple[str, str, str | None]


async def simulate(url: str) -> None:
    """A pump that is switched on, runs up and down, and is switched off."""
    async with jetbus.PeerAsync(url, name="plant") as plant:
        speed = await plant.add_state("pump/speed", 0)
        level = await plant.add_state("tank/level", 50.0)
        running = await plant.add_state("pump/running", True)
        for step in range(STEPS):
            speed.change(round(1000 * math.sin(math.pi * step / STEPS)))
            level.change(round(level.value + 0.001 * speed.value, 3))
            await asyncio.sleep(STEP_S)
        for state in (running, speed, level):
            await state.remove()


async def recorded(url: str, directory: Path) -> None:
    """The first bus, recorded while its plant runs."""
    async with Recorder(url, directory):
        await simulate(url)


async def replayed(source: Path, url: str, directory: Path, speed: float, prefix: str) -> None:
    """The second bus, recorded while the recording of the first is played onto it."""
    async with Recorder(url, directory, rule=f"{prefix}**"), Player(source, url, speed=speed, prefix=prefix) as player:
        await player.wait()
        print(f"played: {player.progress}")


def history(directory: Path, prefix: str = "") -> tuple[list[Event], list[int]]:
    """What happened to which path, with which value; and when, counted from the first of it."""
    rows: list[dict[str, Any]] = journal.open(directory).table(events=["add", "change", "remove"]).to_pylist()
    first = rows[0]["ts"] if rows else None
    events = [(row["event"], row["path"].removeprefix(prefix), row["value"]) for row in rows]
    return events, [round((row["ts"] - first).total_seconds() * 1000) for row in rows]


def compare(original: Path, replay: Path, prefix: str) -> bool:
    """Say how the two histories compare; whether they are equal."""
    (then, then_ms), (now, now_ms) = history(original), history(replay, prefix)
    print(f"recorded: {len(then)} events in {then_ms[-1] / 1000:.2f} s")
    print(f"replayed: {len(now)} events in {now_ms[-1] / 1000:.2f} s")
    if then == now:
        print("the histories are equal")
        return True
    at = next((at for at, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    print(f"the histories differ at event {at + 1}: {then[at : at + 1]} was recorded, {now[at : at + 1]} replayed")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--speed", type=float, default=1.0, help="1 is as it was, 0 as fast as possible")
    parser.add_argument("--prefix", default="replay/", help="what stands before the paths on the second bus")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_daemon() as first, running_daemon() as second:
        original, replay = Path(folder) / "original", Path(folder) / "replay"
        asyncio.run(recorded(first.url, original))
        asyncio.run(replayed(original, second.url, replay, args.speed, args.prefix))
        return 0 if compare(original, replay, args.prefix) else 1


if __name__ == "__main__":
    sys.exit(main())
