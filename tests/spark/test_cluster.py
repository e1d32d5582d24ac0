"""A real cluster on this machine: a master, two workers and a driver, each a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pyspark
import pytest
from pyspark.sql import SparkSession

from jetbus.spark import Tables
from jetbus.spark.schemas import TABLES
from spark import reference
from spark.compare import assert_same, rows_of
from spark.drivers import kill, start
from spark.journals import numbers, write_events
from spark.machines import FOR_FEW_ROWS, JAVA, READY_WITHIN_S

WORKERS = 2
BUSES = ("a", "b", "c", "d")
EVENTS = 30
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1"}
SMALL = {"SPARK_DAEMON_MEMORY": "256m", "JAVA_TOOL_OPTIONS": JAVA}
SETTINGS = FOR_FEW_ROWS | {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": str(WORKERS),
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{READY_WITHIN_S}s",
}
"""All on loopback, and no task before both workers are there."""

STAGES = """
[stage.twice]
file = "twice.py"
"""
CODE = """
from pyspark.sql import functions as F

@F.udf("double")
def double(number):
    return number * 2

def twice(events):
    "Twice of everything."
    return events.select("bus", "ts", "seq", "path", double("num").alias("two"))
"""


class SparkDaemon:
    """A master or a worker, ended by its id."""

    def __init__(self, folder: Path, what: str, *words: str) -> None:
        self._log = folder / f"{what}-{len(list(folder.iterdir()))}.log"
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(SPARK_CLASS), f"org.apache.spark.deploy.{what.lower()}.{what}", "--host", "127.0.0.1", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **LOOPBACK, **SMALL, "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"},
            )

    def until(self, wanted: str) -> str:
        """Wait until it has said something; gives the group of the pattern."""
        for _ in range(20 * READY_WITHIN_S):
            found = re.search(wanted, self._log.read_text(errors="replace"))
            if found:
                return found[1]
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        raise AssertionError(f"it does not say {wanted!r}:\n{self._log.read_text(errors='replace')[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.kill()
        self._process.wait()


class Cluster(NamedTuple):
    """A master with two workers of one core each."""

    url: str
    work: Path

    def busy_executors(self) -> int:
        """How many executors have run tasks."""
        logs = self.work.glob("*/*/stderr")
        return sum("Running task" in log.read_text(errors="replace") for log in logs)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    ports = ("--port", "0", "--webui-port", "0")
    with SparkDaemon(folder, "Master", *ports) as master:
        url = master.until(r"Starting Spark master at (spark://\S+)")
        words = (*ports, "--cores", "1", "--memory", "900m", "--work-dir", str(folder / "work"), url)
        # They join while the driver starts, which waits for both.
        with SparkDaemon(folder, "Worker", *words), SparkDaemon(folder, "Worker", *words):
            yield Cluster(url, folder / "work")


@pytest.mark.timeout(1800)
def test_a_pipeline_on_a_cluster(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """With --master the same command runs on workers: several journals in parallel, a stream of batches, own stages."""
    logs = {bus: numbers(EVENTS, bus=bus) for bus in BUSES}
    for bus, log in logs.items():
        write_events(tmp_path / "journals" / bus, log[:20], bus=bus)
    (tmp_path / "stages.toml").write_text(STAGES)
    (tmp_path / "twice.py").write_text(CODE)
    tables = tmp_path / "tables"
    process = start(
        [f"{tmp_path}/journals/*"],
        tables,
        *("--master", cluster.url, "--every", "100ms", "--few-events", "0", "--stages", str(tmp_path / "stages.toml")),
        settings=SETTINGS,
    )
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["seqs"] == dict.fromkeys(BUSES, 20)
        for bus, log in logs.items():
            write_events(tmp_path / "journals" / bus, log[20:], bus=bus)
        while json.loads(process.stdout.readline())["seqs"] != dict.fromkeys(BUSES, EVENTS):
            pass
        process.terminate()
        assert process.wait(READY_WITHIN_S) == 0
    finally:
        kill(process)
    found = Tables(spark, tables)
    log = [event for one in logs.values() for event in one]
    assert_same("events", rows_of(found.frame("events")), reference.events(log))
    assert_same("history", rows_of(found.frame("history")), reference.history(log))
    doubled = sorted(row.two for row in found.frame("twice").collect())
    assert doubled == sorted(2.0 * n for n in range(1, EVENTS + 1) for _ in BUSES)
    assert cluster.busy_executors() == WORKERS
    del TABLES["twice"]  # other tests know nothing of it
