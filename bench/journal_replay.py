"""Measure a replay: how well it keeps to the time of the recording, and how fast it is when it need not.

    python bench/journal_replay.py                10 s of each rate, about a minute
    python bench/journal_replay.py --quick        3 s of each
    python bench/journal_replay.py --rates 100,2000 --t 20 --strict

A recording with random distances between its events is played at speed 1 onto a daemon in a process of its own, which
keeps a journal. An event's deviation is how much later than the earliest one it came, compared with the recording; both
instants are taken where the journal takes them, so that player, connection and daemon are all in it. Bursts are
fifty events of one instant. Beside it runs a process that only sleeps until the same instants: its delay is
that of the machine, and no player on it can do better.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bars import MISSED, OK, Verdict, bars_table
from compare import markdown, short
from run import machine, say
from servers import BENCH

from jetbus import journal
from jetbus.journal import Settings, Writer
from jetbus.loops import new_loop
from jetbus.player import Player

P95_MS_MOST = 5.0
STATES = 200
BURST = 50
FAST_EVENTS = 200_000
BEGIN_US = 1_767_225_600_000_000
JETD = Path(sys.executable).with_name("jetd")


class Deviation(NamedTuple):
    """How far the events of a replay were off, in milliseconds."""

    events: int
    p50: float
    p95: float
    max: float


def record(directory: Path, instants_us: list[int]) -> None:
    """A recording of states that change at these instants."""
    with Writer(directory, Settings(fsync="never", bus="bench"), now_us=lambda: 0) as writer:
        writer.now_us = BEGIN_US
        for number in range(STATES):
            writer.append("add", "state", f"plant/sensor{number:03d}/value", b"0", "plc#1")
        for number, instant_us in enumerate(instants_us):
            writer.now_us = instant_us
            writer.change(f"plant/sensor{number % STATES:03d}/value", b"%d" % number, "plc#1")


def at_random(rate: int, seconds: float, burst: int = 1) -> list[int]:
    """Instants of so many events a second; the distances are those of independent events."""
    rng = random.Random(1)
    instants: list[int] = []
    at_us = BEGIN_US + 100_000.0
    while at_us < BEGIN_US + 100_000 + seconds * 1e6:
        at_us += rng.expovariate(rate / burst) * 1e6
        instants += [int(at_us)] * burst
    return instants


@contextmanager
def daemon(directory: Path) -> Iterator[str]:
    """A daemon that keeps a journal; gives its url."""
    places = ("--tcp", "127.0.0.1:0", "--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off")
    process = subprocess.Popen([JETD, *places, "--journal", str(directory)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        ready = dict(part.split(b"=", 1) for part in process.stdout.readline().split()[1:])
        yield f"jet://{ready[b'tcp'].decode()}"
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def play(source: Path, url: str, speed: float) -> float:
    """Play it to the end; gives how long it took."""

    async def playing() -> float:
        async with Player(source, url, speed=speed) as player:
            begin_s = time.monotonic()
            await player.wait()
            return time.monotonic() - begin_s

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(playing())


def changes_us(directory: Path) -> list[int]:
    """The instants of all changes in a journal."""
    found: list[int] = journal.open(directory).table(events=["change"])["ts"].cast("int64").to_pylist()
    return found


def sleep_until(instants_us: list[int]) -> list[int]:
    """Sleep until each of these instants, counted from now, and return the instants of waking."""
    shift_us = time.time_ns() // 1000 - BEGIN_US
    woken = []
    for instant_us in instants_us:
        time.sleep(max(0, instant_us + shift_us - time.time_ns() // 1000) / 1e6)
        woken.append(time.time_ns() // 1000)
    return woken


def deviation(instants_us: list[int]) -> tuple[Deviation, Deviation]:
    """Play a recording of events at these instants at speed 1, and sleep beside it."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1) as beside:
        source, replay = Path(folder) / "source", Path(folder) / "replay"
        record(source, instants_us)
        with daemon(replay) as url:
            sleeping = beside.submit(sleep_until, instants_us)
            play(source, url, 1.0)
        return _deviation(changes_us(replay), instants_us), _deviation(sleeping.result(), instants_us)


def _deviation(came_us: list[int], instants_us: list[int]) -> Deviation:
    shifts = [now - then for now, then in zip(came_us, instants_us, strict=True)]
    off = sorted((shift - min(shifts)) / 1000 for shift in shifts)
    return Deviation(len(off), off[len(off) // 2], off[len(off) * 95 // 100], off[-1])


def fast() -> float:
    """Events per second as fast as possible."""
    with tempfile.TemporaryDirectory() as folder:
        source, replay = Path(folder) / "source", Path(folder) / "replay"
        record(source, at_random(10_000, FAST_EVENTS / 10_000))
        with daemon(replay) as url:
            spent_s = play(source, url, 0)
        return len(changes_us(replay)) / spent_s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", default="100,1000,5000", metavar="N,N", help="events per second")
    parser.add_argument("--t", type=float, default=10.0, metavar="SECONDS", help="seconds of each recording")
    parser.add_argument("--quick", action="store_true", help="3 s of each")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    args = parser.parse_args()
    args.rates = [int(rate) for rate in args.rates.split(",")]
    if args.quick:
        args.t = 3.0
    if min(args.rates) < 1 or not 0 < args.t <= 600:
        parser.error("at least one event a second, for more than 0 and at most 600 s")
    return args


def main() -> int:
    args = arguments()
    cases = {f"{rate}/s": at_random(rate, args.t) for rate in args.rates}
    cases[f"{args.rates[-1]}/s in bursts"] = at_random(args.rates[-1], args.t, BURST)
    found = {}
    for name, instants_us in cases.items():
        found[name] = played, slept = deviation(instants_us)
        say(f"{name}: {played.events} events, p95 {played.p95:.2f} ms, a sleeper {slept.p95:.2f} ms")
    rows = [
        [name, f"{played.events}", *(f"{played[i]:.2f} ({slept[i]:.2f})" for i in (1, 2, 3))]
        for name, (played, slept) in found.items()
    ]
    verdicts = [
        Verdict(
            f"replay at {name}: p95 within {P95_MS_MOST:g} ms of the recording",
            f"{played.p95:.2f} ms (a sleeper: {slept.p95:.2f} ms)",
            OK if played.p95 <= P95_MS_MOST else MISSED,
        )
        for name, (played, slept) in found.items()
    ]
    command = f"python bench/journal_replay.py --rates {','.join(map(str, args.rates))} --t {args.t:g}"
    head = f"## Replay at speed 1\n\n{machine()}, `{command}`\n\n"
    table = markdown(["recorded", "events", "p50 ms (a sleeper)", "p95 ms", "max ms"], rows)
    text = f"{head}{table}\nAs fast as possible: {short(fast())} events/s\n{bars_table(verdicts)}"
    print(text)
    folder = BENCH / "results"
    folder.mkdir(exist_ok=True)
    (folder / time.strftime("replay-%Y%m%d-%H%M%S.md")).write_text(text)
    return 1 if args.strict and any(row.verdict == MISSED for row in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
