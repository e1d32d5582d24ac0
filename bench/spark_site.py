"""A site of many devices, scaled down: journals by the tens, hundreds and thousands through all tables.

    .venv/bin/python bench/spark_site.py [--journals 10 100 1000] [--events 1000]

Every device has a journal of its own with as many events, so that the sizes differ by their number of journals only.
For each size: how long the driver looks at journals that it knows, and for all tables the seconds, the processor time
an event and the bytes an event on both sides. Growth is linear if the cost of an event stays, and better while it
falls. The first size is run twice and told once, since a cold Java machine is not the site's cost.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from spark_bars import cpu_s, timed

from jetbus import journal
from jetbus.spark import Pipeline, session
from jetbus.spark.journals import OpenBuses
from jetbus.spark.options import read_options
from jetbus.spark.pipeline import where
from jetbus.spark.schemas import TABLES

BEGIN_US = 1_772_323_200_000_000
STATES = 20
"""States of one device."""
HEADS = (
    "journals",
    "events",
    "look ms",
    "tables s",
    "cpu us/event",
    "events/cpu s",
    "journal B/event",
    "tables B/event",
)
LINE = " ".join(f"{{:>{max(len(head), 10)}}}" for head in HEADS)


def write_site(root: Path, journals: int, events: int) -> None:
    """Journals of devices with states that change one after the other, a hundred times a second."""
    for number in range(journals):
        bus = f"device{number:04}"
        with journal.Writer(root / bus, journal.Settings(bus=bus, fsync="never"), now_us=lambda: BEGIN_US) as writer:
            for n in range(events):
                writer.now_us = BEGIN_US + n * 10_000 + number
                value = b"%.3f" % (50 + 40 * math.sin((n + number) / 100))
                writer.change(f"motor/{n % STATES}/speed", value, "device#1")


def look_s(root: Path) -> float:
    """How long it takes to see how far all journals are, when they are known."""
    buses = OpenBuses(read_options(where([f"{root}/*"])))
    buses.ends()
    return timed(buses.ends)


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(spark: SparkSession, root: Path, tables: Path, events: int) -> list[str]:
    """The figures of one site."""
    with Pipeline(spark, f"{root}/*", tables) as pipeline:
        before_s = cpu_s()
        seconds = timed(pipeline.run_once)
        used_s = cpu_s() - before_s
        assert sum(pipeline.store.progress.seqs.values()) == events
    written = sum(bytes_below(tables / name) for name in TABLES if (tables / name).exists())
    return [
        f"{look_s(root) * 1000:.0f}",
        f"{seconds:.1f}",
        f"{used_s / events * 1e6:.1f}",
        f"{events / used_s:,.0f}",
        f"{bytes_below(root) / events:.1f}",
        f"{written / events:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journals", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--events", type=int, default=1000, help="of each journal")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="4g")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="jetbus-site-"))
    try:
        print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
        print(LINE.format(*HEADS))
        spark = session(given.master, memory=given.memory)
        for place, journals in enumerate([given.journals[0], *given.journals]):
            root, tables, events = scratch / f"site{place}", scratch / f"tables{place}", journals * given.events
            write_site(root, journals, given.events)
            figures = measure(spark, root, tables, events)
            if place:
                print(LINE.format(journals, f"{events:,}", *figures), flush=True)
            shutil.rmtree(root)
            shutil.rmtree(tables)
        spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
