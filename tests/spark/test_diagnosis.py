"""Failures of Spark, its workers and its disks: those that pass, and those that end a run with one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import jetbus
from jetbus.cli.main import run
from jetbus.errors import NotConnected
from jetbus.spark import DataLoss, JavaGone, JetSparkError, NotTables, Pipeline, SparkFailed
from jetbus.spark.diagnosis import explain_failure
from jetbus.testing import running_daemon
from support.spark import reference
from support.spark.drivers import kill, start
from support.spark.journals import numbers, write_events
from support.spark.on_disk import assert_on_disk, read_delta
from support.spark.waits import WITHIN_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.conftest import RecordedBuses

EVENTS = 40
STAGES = """
[stage.copied]
file = "mine.py"
"""
DIES_ONCE = """
import os, signal
from pathlib import Path
from pyspark.sql import functions as F

MARK = Path({mark!r})

@F.udf("double")
def copy(number):
    if not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number

def copied(events):
    return events.where("event = 'change'").select("ts", "path", copy("num").alias("num"))
"""
FAILS = """
from pyspark.sql import functions as F

@F.udf("double")
def copy(number):
    raise ValueError("there is no pump of that name")

def copied(events):
    return events.where("event = 'change'").select("ts", "path", copy("num").alias("num"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a journal, and with a stage whose code is up to the test."""
    write_events(tmp_path / "journal", numbers(EVENTS), bus="plant")
    (tmp_path / "stages.toml").write_text(STAGES)
    return tmp_path


def test_a_failure_that_passes_is_a_restart(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that dies in a batch costs a pause: the query is started again, and tables have each event once.

    The restart is counted, logged with its reason, and published.
    """
    monkeypatch.setattr("jetbus.spark.pipeline.PAUSE_S", 0.01)
    (folder / "mine.py").write_text(DIES_ONCE.format(mark=str(folder / "mark")))
    with (
        running_daemon() as daemon,
        jetbus.Peer(daemon.url) as watcher,
        Pipeline(
            spark,
            folder / "journal",
            folder / "tables",
            stage_file=folder / "stages.toml",
            publish="spark",
            publish_url=daemon.url,
        ) as pipeline,
    ):
        pipeline.start(every_s=0.1)
        watcher.wait_for("spark/pipeline/lag", timeout_s=WITHIN_S)
        shown = watcher.get("spark/pipeline/restarts")
        assert pipeline.restarts == shown["count"] == 1
        assert "a Python worker of Spark did not start in time, or has ended" in shown["why"]
    assert "restart 1 follows in 0.01 s" in caplog.text
    log = numbers(EVENTS)
    assert_on_disk(folder / "tables", {"events": reference.events(log), "history": reference.history(log)})
    assert sorted(row["num"] for row in read_delta(folder / "tables", "copied").to_pylist()) == list(range(1, 41))


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """Mount a file system of 4 MB; skips the test where that is not allowed."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a file system can be mounted by root only: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Fill a disk with a file."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 4096):
            pass
    return filler


def test_a_full_disk_passes(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline waits for room on a full disk and goes on without loss or repeat; a run to the end gives up."""
    monkeypatch.setattr("jetbus.spark.pipeline.PAUSE_S", 0.01)
    monkeypatch.setattr("jetbus.spark.pipeline.RESTARTS_ONCE_MAX", 1)
    log = numbers(2 * EVENTS)
    with small_disk(folder / "disk") as disk:
        tables = disk / "tables"
        with Pipeline(spark, folder / "journal", tables, checkpoint=str(folder / "checkpoint")) as pipeline:
            pipeline.run_once()
            write_events(folder / "journal", log[EVENTS:], bus="plant")
            filler = fill(disk)
            with pytest.raises(SparkFailed, match=r"the table '\w+' could not be written because a disk is full; free"):
                pipeline.run_once()
            assert pipeline.restarts == 1
            pipeline.start(every_s=0.1)
            until(lambda: pipeline.restarts > 0, "the query is not started again")
            filler.unlink()
            until(lambda: pipeline.store.progress.seqs["plant"] == 2 * EVENTS, "the events do not come")
        assert_on_disk(tables, {"events": reference.events(log), "history": reference.history(log)})


def test_a_missing_file_ends_the_run(
    spark: SparkSession, again: RecordedBuses, capsys: pytest.CaptureFixture[str]
) -> None:
    """A data file that is gone is named with its table and what to do, in one line, and is no reason to try again.

    Those who ask with SQL are told the same.
    """
    for file in (again.tables / "carried_paths").rglob("*.parquet"):
        file.unlink()
    again.happen(again.rest)
    with again.pipeline(spark) as pipeline:
        with pytest.raises(SparkFailed) as caught:
            pipeline.run_once()
        assert pipeline.restarts == 0
    assert "the table 'carried_paths' has lost its data file /" in str(caught.value)
    assert str(caught.value).endswith("; restore it from a backup, or make the tables anew in another place")
    assert "\n" not in str(caught.value)
    assert run(["sql", "select count(*) from history", "--tables", str(again.tables)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jet: the table 'carried_paths' has lost its data file /")


def test_a_failed_task_ends_the_run(spark: SparkSession, folder: Path) -> None:
    """An error of a stage in a task is told as it was raised there, in one line, without Java's stack."""
    (folder / "mine.py").write_text(FAILS)
    with (
        Pipeline(spark, folder / "journal", folder / "tables", stage_file=folder / "stages.toml") as pipeline,
        pytest.raises(SparkFailed) as caught,
    ):
        pipeline.run_once()
    assert str(caught.value) == "Spark has ended the run: ValueError: there is no pump of that name"
    assert not caught.value.passes


def because(problem: Exception, cause: Exception) -> Exception:
    problem.__cause__ = cause
    return problem


STACK = "terminated with exception: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times\n\tat x.Y\n"
KNOWN: dict[str, tuple[Exception, type[JetSparkError], bool, str]] = {
    "worker": (
        StreamingQueryException(f"{STACK}org.apache.spark.SparkException: Python worker failed to connect back."),
        SparkFailed,
        True,
        "a Python worker of Spark",
    ),
    "executor": (
        PySparkException(f"{STACK} ExecutorLostFailure (executor 1 exited caused by one of the running tasks)"),
        SparkFailed,
        True,
        "an executor of Spark was lost",
    ),
    "store": (
        because(NotTables("the table 'events' in s3://b/t cannot be read"), OSError("error sending request for url")),
        SparkFailed,
        True,
        "the store of the tables at s3://b/t does not answer",
    ),
    "disk": (OSError(28, "No space left on device"), SparkFailed, True, "a disk is full"),
    "daemon": (
        StreamingQueryException(f"{STACK}jetbus.errors.NotConnected: no daemon at jet://a:1; start one"),
        SparkFailed,
        True,
        "a daemon does not answer: no daemon at jet://a:1",
    ),
    "daemon, in the driver": (NotConnected("no daemon at jet://a:1"), SparkFailed, True, "a daemon does not answer"),
    "login of the store": (OSError("Forbidden: 403"), SparkFailed, False, "check the permissions there"),
    "memory": (PySparkException(f"{STACK}OutOfMemoryError: Java heap space"), SparkFailed, False, "--batch-events"),
    "loss": (
        StreamingQueryException(f"{STACK}jetbus.spark.spark_errors.DataLoss: events 1 to 3 of bus 'a' were dropped"),
        DataLoss,
        False,
        "events 1 to 3 of bus 'a' were dropped",
    ),
    "another pipeline": (NotTables("another pipeline writes to /t"), NotTables, False, "another pipeline writes to /t"),
    "Java is gone": (Py4JNetworkError("Answer from Java side is empty"), JavaGone, False, "the Java process of Spark"),
    "Java is going": (
        Py4JError("An error occurred: Answer from Java side is empty"),
        JavaGone,
        False,
        "start the pipeline again",
    ),
    "Java went": (ConnectionRefusedError(111, "Connection refused"), JavaGone, False, "the Java process of Spark"),
}


@pytest.mark.parametrize("case", KNOWN)
def test_failures_are_told_apart(case: str) -> None:
    """Each known failure is one sentence about what happened and what to do, and passes or does not."""
    problem, kind, passes, words = KNOWN[case]
    found = explain_failure(problem, "s3://b/t")
    assert type(found) is kind
    assert getattr(found, "passes", False) is passes
    assert words in str(found)
    assert "\n" not in str(found)


def test_other_errors_stay_as_they_are() -> None:
    """A bug in the driver is no failure of Spark."""
    bug = KeyError("x")
    assert explain_failure(bug, "/t") is bug


# -- processes

ENDS: dict[str, tuple[int | None, str]] = {
    "group": (0, "jet: stopped by SIGTERM; the next run goes on after batch 0\n"),
    "java": (1, "jet: the Java process of Spark has ended: it was killed, or had no memory left; start the"),
    "driver": (-signal.SIGKILL, ""),
}


def java_of(driver: subprocess.Popen[str]) -> int:
    """Find the Java process of a driver."""
    return int(Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()[0])


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.timeout(900)
def test_ends_of_processes(tmp_path: Path) -> None:
    """SIGTERM to all processes ends a pipeline with code 0 and one line; a Java that is killed is told in one sentence.

    However a driver ends, also if it is killed, its Java ends, too.
    """
    write_events(tmp_path / "journal", numbers(EVENTS), bus="plant")
    drivers = {
        how: start([str(tmp_path / "journal")], tmp_path / how, "--every", "100ms", "--ui", "off", told=True)
        for how in ENDS
    }
    try:
        for driver in drivers.values():
            assert driver.stdout is not None
            assert driver.stdout.readline(), driver.communicate()[1]
        java = {how: java_of(driver) for how, driver in drivers.items()}
        os.killpg(drivers["group"].pid, signal.SIGTERM)
        os.kill(java["java"], signal.SIGKILL)
        os.kill(drivers["driver"].pid, signal.SIGKILL)
        for how, (code, text) in ENDS.items():
            _, complaints = drivers[how].communicate(timeout=WITHIN_S)
            assert (drivers[how].returncode, len(complaints.splitlines())) == (code, bool(text)), complaints
            assert complaints.startswith(text)
            until(lambda how=how: not is_running(java[how]), f"{how}: Java is left behind")  # type: ignore[misc]
    finally:
        for driver in drivers.values():
            kill(driver)
