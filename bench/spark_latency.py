"""Delay from an event on the bus to the state that the pipeline publishes, by a real daemon and a real fetch.

    .venv/bin/python bench/spark_latency.py --changes 100

A daemon with a journal, a pipeline that looks for events every 200 ms, a peer that changes a state across the threshold
of an alarm, and another one that fetches the state of that alarm. The time is from before the change to the
notification that has its value. Some changes are made first and not counted: a new Java machine compiles first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_bars import cpu_s

import jetbus
from jetbus.spark import Batch, Pipeline, session

ALARMS = """
[alarm.high]
rule = "plant/*"
when = "num > 50"
"""
WITHIN_S = 120.0
BARS_S = {"median": 1.2, "95 %": 2.5}


@contextmanager
def daemon(journal: Path) -> Iterator[str]:
    """A daemon of its own process; gives its address."""
    options = [
        *("--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off"),
        "--journal",
        str(journal),
        "--journal-bus",
        "plant",
    ]
    command = [sys.executable, "-m", "jetbus.daemon.main", "--tcp", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = dict(part.split("=", 1) for part in process.stdout.readline().split() if "=" in part)
        yield f"jet://{told['tcp']}"
    finally:
        process.terminate()
        process.wait()


def measure(url: str, changes: int, limit_s: float) -> list[float]:
    """Seconds from each change to the state that tells of it, of as many changes as the time allows."""
    took_s: list[float] = []
    until_s = time.perf_counter() + limit_s
    with jetbus.Peer(url, name="plant") as owner, jetbus.Peer(url, name="screen") as screen:
        level = owner.add_state("plant/level", 0)
        with screen.fetch("result/alarms/**") as events:
            for n in range(changes):
                if time.perf_counter() > until_s:
                    break
                # Above the threshold and below it in turns, never twice the same.
                value = 100 + n if n % 2 == 0 else -n
                begun_s = time.perf_counter()
                level.change(value)
                while (event := events.next(WITHIN_S)).value is None or event.value["value"] != value:
                    pass
                took_s.append(time.perf_counter() - begun_s)
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--first", type=int, default=40, help="changes that are not counted")
    parser.add_argument("--seconds", type=float, default=3600.0, help="limit of the first changes, and of the others")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two looks for events")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--url", action="store_true", help="read the journal over the bus, not from its folder")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="jetbus-latency-"))
    batches: list[Batch] = []
    try:
        print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
        (scratch / "alarms.toml").write_text(ALARMS)
        with daemon(scratch / "journal") as url:
            spark = session(given.master)
            with Pipeline(
                spark,
                url if given.url else scratch / "journal",
                scratch / "tables",
                alarm_file=scratch / "alarms.toml",
                on_batch=batches.append,
                publish="result",
                publish_url=url,
            ) as pipeline:
                pipeline.start(given.every)
                measure(url, given.first, given.seconds)
                batches.clear()
                began_s = cpu_s()
                took_s = measure(url, given.changes, given.seconds)
                used_s = cpu_s() - began_s
            spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    figures = {"median": statistics.median(took_s), "95 %": statistics.quantiles(took_s, n=20)[-1]}
    for name, seconds in figures.items():
        print(f"{'bus to bus, ' + name:28} {seconds:8.2f} s   bar {BARS_S[name]:.1f} s")
    print(f"{'  changes':28} {len(took_s):8}")
    made_s = statistics.median(batch.seconds for batch in batches)
    print(f"{'  of it a batch':28} {made_s:8.2f} s   {used_s / len(batches):.2f} s of processor each")


if __name__ == "__main__":
    main()
