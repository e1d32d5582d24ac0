"""Cost of a batch by the number of states on the bus: a batch must pay for its own paths, not for all.

    .venv/bin/python bench/spark_states.py --states 10000 1000000 --touched 10000

For each number of states it makes tables in which all of them have a value, then times batches that change some of
them. Prints the processor time of a batch and its ratio to the first column; at most 3 is the bar.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from spark_bars import BEGIN_US, cpu_s

from jetbus import journal
from jetbus.spark import Pipeline, session

BAR = 3.0


def write_changes(directory: Path, first: int, count: int, at_us: int) -> None:
    """Append a change of some states, one after the other."""
    settings = journal.Settings(bus="plant", fsync="never")
    with journal.Writer(directory, settings, now_us=lambda: at_us) as writer:
        for n in range(first, first + count):
            writer.change(f"plant/line{n % 10}/machine{n // 10}/sensor", b"%d" % n, "plant#1")
            if n % 10_000 == 9_999:
                writer.commit()


def measure(spark: SparkSession, scratch: Path, states: int, touched: int, rounds: int) -> float:
    """Return the median processor time of a batch."""
    directory = scratch / str(states)
    write_changes(directory / "journal", 0, states, BEGIN_US)
    used_s = []
    for n in range(rounds + 2):
        with Pipeline(spark, directory / "journal", directory / "tables") as pipeline:
            before_s = cpu_s()
            pipeline.run_once()
            used_s.append(cpu_s() - before_s)
        write_changes(directory / "journal", n * touched % states, touched, BEGIN_US + (n + 1) * 500_000)
    return statistics.median(used_s[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--touched", type=int, default=10_000, help="events of a batch, each of another state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="jetbus-states-"))
    try:
        print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
        spark = session(given.master, memory="4g")
        measure(spark, scratch, 1_000, 1_000, given.rounds)  # warms up
        first = None
        for states in given.states:
            used_s = measure(spark, scratch, states, min(given.touched, states), given.rounds)
            first = first or used_s
            print(
                f"{states:12,} states   {used_s:6.2f} s of processor a batch   {used_s / first:5.2f} of {BAR}",
                flush=True,
            )
        spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
