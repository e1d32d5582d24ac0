"""A recorder that is killed in the middle: the journal goes on without a repeat."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from jetbus import PeerAsync
from jetbus.journal import verify
from jetbus.recorder import Recorder
from jetbus.testing import RunningDaemon
from support.peers import run
from support.recorded_events import check_chain, recorded_events, rows, until_tree

KILLS = 5
STATES = 50
PROGRAM = """
import sys
from jetbus.journal import Settings
from jetbus.recorder import record
record(sys.argv[1], sys.argv[2], settings=Settings(flush_ms=2), on_start=lambda _recorder: print("ready", flush=True))
"""


async def recording(daemon: RunningDaemon, directory: Path) -> subprocess.Popen[bytes]:
    """A recorder in a process of its own, recording."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, daemon.url, str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    line = await asyncio.to_thread(process.stdout.readline)
    assert line == b"ready\n", process.communicate()[1].decode()
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_killed_again_and_again(daemon: RunningDaemon, tmp_path: Path) -> None:
    """After every kill the journal goes on with the difference: no seq and no add twice, in the end all is there."""
    rng = random.Random(1)

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            states: dict[str, Any] = {f"s/{n}": await owner.add_state(f"s/{n}", 0) for n in range(STATES)}
            for _ in range(KILLS):
                process = await recording(daemon, tmp_path)
                for number in range(rng.randrange(50, 2000)):
                    path = f"s/{rng.randrange(STATES)}"
                    if path not in states:
                        states[path] = await owner.add_state(path, number)
                    elif rng.random() < 0.02:
                        await states.pop(path).remove()
                    else:
                        states[path].change(number)
                    if number % 20 == 0:
                        await asyncio.sleep(0)
                kill(process)
            async with Recorder(daemon.url, tmp_path) as recorder:
                await until_tree(recorder, {path: state.value for path, state in states.items()})

    run(case())
    check_chain(tmp_path)
    assert verify(tmp_path) == []
    events = [event for event, *_ in recorded_events(tmp_path)]
    assert (events.count("start"), events.count("gap"), events.count("stop")) == (1, KILLS, 1)


def test_what_differs_after_a_kill(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A gap since the last event, then what changed, vanished, came, and what became something else; nothing more."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            for number in range(20):
                await owner.add_state(f"same/{number}", number)
            changing, going = await owner.add_state("changing", 1), await owner.add_state("going", 1)
            turning = await owner.add_state("turning", 1)
            kill(await recording_all(daemon, tmp_path, 24))
            last = len(rows(tmp_path))
            changing.change(2)
            await going.remove()
            await turning.remove()
            await owner.add_method("turning", lambda: None)
            await owner.add_state("coming", 1)
            async with Recorder(daemon.url, tmp_path) as recorder:
                await recorder.commit()
                after = recorded_events(tmp_path, seq=last + 1)
        assert after[0] == ("gap",)
        assert sorted(after[1:], key=str) == sorted(
            [
                ("change", "changing", 2),
                ("remove", "going", 1),
                ("remove", "turning", 1),
                ("add", "turning", None),
                ("add", "coming", 1),
            ],
            key=str,
        )
        gap = rows(tmp_path)[last]
        assert datetime.fromisoformat(gap["detail"]["since"]) == rows(tmp_path)[last - 1]["ts"]
        assert gap["detail"]["reason"] == "the recorder ended without a stop"
        check_chain(tmp_path)

    run(case())


async def recording_all(daemon: RunningDaemon, directory: Path, events: int) -> subprocess.Popen[bytes]:
    """A recorder that has so many events on disk."""
    process = await recording(daemon, directory)
    async with asyncio.timeout(20):
        while len(rows(directory)) < events:
            await asyncio.sleep(0.01)
    return process
