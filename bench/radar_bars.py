"""How Radar holds up: ten million points of history, and a page of a busy bus in a real Chromium.

    .venv/bin/python bench/radar_bars.py                      # both, with a page for one minute; about three minutes
    .venv/bin/python bench/radar_bars.py history              # first picture and zooms of 10 million points
    .venv/bin/python bench/radar_bars.py page --minutes 10    # 100,000 states, 5,000 changes a second

Every bar is a row: the bar, the measured figure, ok or MISSED. History is measured from the request to the end of
its answer. Counters of Chromium measure the page: time of tasks on the main thread, frames while the list
scrolls by itself, and the JavaScript heap after a collection, in the first and in the last tenth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import journal_read
import numpy as np
import pyarrow as pa
from journal_read import BEGIN_US, FLUSH_EVENTS, row

from jetbus.journal.segment import PLAIN
from jetbus.peer import PeerAsync

BIN = Path(sys.executable).parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

POINTS = 10_000_000
OTHERS = 1_000
"""States beside the one with the points; they have a tenth as many events together."""
STEP_US = 1_000
FIRST_S_MOST, ZOOM_S_MOST = 2.0, 0.2
MAIN_THREAD_MOST, FRAMES_LEAST = 0.5, 30.0
HEAP_GROWTH_MOST = 1.2
SCROLL_S = 5.0
LINES = 4
"""Nodes with the states of the bus; all of them are open, so that every state is a row."""


# -- history


def make_batches(states: int, events: int) -> Iterator[Any]:
    """Yield events of which ten in eleven are changes of one state, a sine with noise and rare spikes."""
    rng = np.random.default_rng(1)
    names = np.array(["plant/fast", *(f"plant/slow/{number}" for number in range(states))])
    for first in range(1, events + 1, FLUSH_EVENTS):
        seq = np.arange(first, first + FLUSH_EVENTS)
        which = np.where(rng.random(FLUSH_EVENTS) < 10 / 11, 0, rng.integers(1, states + 1, FLUSH_EVENTS))
        kinds = np.full(FLUSH_EVENTS, "change", dtype=object)
        if first == 1:
            which[: states + 1] = np.arange(states + 1)
            kinds[: states + 1] = "add"
        values = np.round(50 + 10 * np.sin(seq / 1e6) + rng.random(FLUSH_EVENTS), 3)
        yield pa.record_batch(
            [
                pa.array(seq),
                pa.array(seq * STEP_US + BEGIN_US).cast(pa.timestamp("us", tz="UTC")),
                pa.array(kinds, pa.string()),
                pa.repeat(pa.scalar("state"), FLUSH_EVENTS),
                pa.array(names[which]),
                pa.array(values).cast(pa.string()),
                pa.repeat(pa.scalar("plc#1"), FLUSH_EVENTS),
                pa.nulls(FLUSH_EVENTS, pa.string()),
            ],
            schema=PLAIN.schema,
        )


def measure_history(folder: Path, points: int) -> None:
    """Measure the first picture of all points, and zooms into it."""
    events = points * 11 // 10 // FLUSH_EVENTS * FLUSH_EVENTS
    journal_read.batches = make_batches
    journal_read.build(folder, OTHERS, events)
    begin, end = BEGIN_US, BEGIN_US + (events + 1) * STEP_US
    with start_daemon() as url, start_radar(url, "--journal", str(folder)) as radar:
        ask(radar, "series", path="plant/slow/1", since=end - 1_000_000, until=end)  # everything is imported
        took = ask(radar, "series", path="plant/fast", since=begin, until=end, points=1500)
        row(f"{points / 1e6:.0f} M points: first picture, under {FIRST_S_MOST} s", f"{took:.2f} s", took < FIRST_S_MOST)
        rng, times = random.Random(1), []
        for _ in range(40):
            length = int((end - begin) * rng.random() ** 3) + 1_000_000
            since = begin + int((end - begin - length) * rng.random())
            times.append(ask(radar, "series", path="plant/fast", since=since, until=since + length, points=1500))
        times.append(ask(radar, "series", path="plant/fast", since=begin, until=end, points=1500))
        measured = f"median {sorted(times)[len(times) // 2] * 1e3:.0f} ms, worst {max(times) * 1e3:.0f} ms"
        row(f"{points / 1e6:.0f} M points: a zoom, under {ZOOM_S_MOST} s", measured, max(times) < ZOOM_S_MOST)


def ask(radar: str, name: str, **parameters: Any) -> float:
    """Return the seconds that an answer took."""
    begun = time.perf_counter()
    with urllib.request.urlopen(f"{radar}api/{name}?{urllib.parse.urlencode(parameters)}", timeout=600) as answer:  # noqa: S310 - Radar says where
        answer.read()
    return time.perf_counter() - begun


# -- processes


@contextmanager
def start_daemon(*options: str) -> Iterator[str]:
    """Run a daemon on a free port; yields its URL."""
    words = ["--tcp", "127.0.0.1:0", "--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off"]
    with start(str(BIN / "jetd"), *words, *options) as ready:
        yield "jet://" + ready.split("tcp=")[1].split()[0]


@contextmanager
def start_radar(url: str, *options: str) -> Iterator[str]:
    """Run a Radar; yields its address."""
    words = ("radar", "--url", url, "--listen", "127.0.0.1:0", "--no-open", "-o", "jsonl")
    with start(str(BIN / "jet"), *words, *options) as ready:
        yield str(json.loads(ready)["address"])


@contextmanager
def start(*command: str) -> Iterator[str]:
    """Run a program and yield its first line; it has ended when the block is left."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
    finally:
        process.terminate()
        process.wait()


async def run_plant(url: str, states: int, per_s: int) -> None:
    """Add states and change them in turn, so many a second, until the process is ended."""
    async with PeerAsync(url, name="plant") as peer:
        names = (f"plant/line{number % LINES}/sensor{number}" for number in range(states))
        owned = [await peer.add_state(name, 0) for name in names]
        print("ready", flush=True)
        rng, next_at = random.Random(1), time.monotonic()
        while True:
            for _ in range(per_s // 50):
                owned[rng.randrange(states)].change(rng.random() * 100)
            next_at += 0.02
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))


# -- the page


def measure_page(states: int, per_s: int, minutes: float) -> None:
    """Measure a page that shows the tree of a busy bus."""
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        url = stack.enter_context(start_daemon())
        plant = (sys.executable, __file__, "plant", "--url", url, "--states", str(states), "--changes", str(per_s))
        stack.enter_context(start(*plant))
        radar = stack.enter_context(start_radar(url))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(browser.close)
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        nodes = ["plant", *(f"plant/line{number}" for number in range(LINES))]
        page.goto(f"{radar}#{urllib.parse.urlencode([('open', node) for node in nodes])}")
        is_complete = "count => Number(document.getElementById('rows')?.ariaRowCount) >= count"
        page.wait_for_function(is_complete, arg=states, timeout=300_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def read(name: str) -> float:
            found = session.send("Performance.getMetrics")["metrics"]
            return float(next(one["value"] for one in found if one["name"] == name))

        def read_heap_mb() -> float:
            session.send("HeapProfiler.collectGarbage")
            return read("JSHeapUsedSize") / 1e6

        heaps = [read_heap_mb()]
        busy, begun = read("TaskDuration"), time.monotonic()
        for _ in range(10):
            page.wait_for_timeout(minutes * 6_000)
            heaps.append(read_heap_mb())
        share = (read("TaskDuration") - busy) / (time.monotonic() - begun)
        frames, scrolled_share = measure_scrolling(page, read)
        what = f"{states:,} states, {per_s:,} changes/s"
        row(f"{what}: main thread, under {MAIN_THREAD_MOST:.0%}", f"{share:.1%}", share < MAIN_THREAD_MOST)
        row(
            f"{what}: scrolling, above {FRAMES_LEAST:.0f} frames/s",
            f"{frames:.0f} frames/s, main thread {scrolled_share:.0%}",
            frames > FRAMES_LEAST,
        )
        growth = heaps[-1] / heaps[1]
        measured = f"{heaps[1]:.1f} MB, then {heaps[-1]:.1f} MB"
        row(f"{what}: heap flat over {minutes:g} min", measured, growth < HEAP_GROWTH_MOST)


def measure_scrolling(page: Any, read: Any) -> tuple[float, float]:
    """Scroll the list frame by frame, and return frames per second and the main thread's share."""
    busy, begun = read("TaskDuration"), time.monotonic()
    frames = page.evaluate(
        """seconds => new Promise(resolve => {
            const rows = document.getElementById("rows");
            const begun = performance.now();
            let frames = 0, step = 90;
            const draw = () => {
                frames++;
                if (rows.scrollTop <= 0) step = Math.abs(step);
                if (rows.scrollTop + rows.clientHeight >= rows.scrollHeight - 1) step = -Math.abs(step);
                rows.scrollTop += step;
                const passed = (performance.now() - begun) / 1000;
                if (passed >= seconds) resolve(frames / passed);
                else requestAnimationFrame(draw);
            };
            requestAnimationFrame(draw);
        })""",
        SCROLL_S,
    )
    return float(frames), (read("TaskDuration") - busy) / (time.monotonic() - begun)


def main() -> None:
    """Measure the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("history", "page", "plant"), help=argparse.SUPPRESS)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=5_000, help="a second")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part == "plant":
        asyncio.run(run_plant(chosen.url, chosen.states, chosen.changes))
        return
    if chosen.part in (None, "history"):
        with tempfile.TemporaryDirectory(prefix="jetbus-bench-") as folder:
            measure_history(Path(folder), chosen.points)
    if chosen.part in (None, "page"):
        if CHROMIUM is None:
            sys.exit("there is no Chromium on this machine")
        measure_page(chosen.states, chosen.changes, chosen.minutes)


if __name__ == "__main__":
    main()
