"""A real cluster on this machine: a master, two workers and a driver, each a process of its own.

All are started as docs/cluster.md says, with figures and places that fit one small machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus.cli.main import run
from jetbus.spark import Tables
from support.daemon import Daemon
from support.docs import DOCS, blocks_of
from support.spark import reference
from support.spark.drivers import kill
from support.spark.journals import numbers, write_events
from support.spark.kills import read_log
from support.spark.machines import FOR_FEW_ROWS, JAVA, READY_WITHIN_S, environment
from support.spark.on_disk import assert_on_disk, last_seqs, read_delta

WORKERS = 2
BUSES = ("a", "b")
KILLS = 4
"""Kills of executors while a pipeline runs."""
TASKS_MAX = 5
"""An executor is killed after so many tasks, or fewer."""
EVENTS = 30
PROGRAMS = Path(sys.executable).parent
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1"}
SMALL = {"SPARK_DAEMON_MEMORY": "256m", "JAVA_TOOL_OPTIONS": JAVA}
SETTINGS = FOR_FEW_ROWS | {
    # A session on a cluster has many partitions after a shuffle, which adaptive execution merges.
    "spark.sql.adaptive.enabled": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{READY_WITHIN_S}s",
    # Kills are seconds apart, so that a task may meet more of them than the four failures that Spark allows.
    "spark.task.maxFailures": f"{2 * KILLS}",
    "spark.stage.maxConsecutiveAttempts": f"{2 * KILLS}",
}
"""Beside those of the page: all on loopback, no task before both workers are there, and more kills than usual."""

PAGE = DOCS / "cluster.md"
((RUN,), (EXPORT, MASTER, WORKER), (RUN_ON_YARN,)) = [block.commands for block in blocks_of(PAGE) if block.is_shell]
DEFAULTS, ON_KUBERNETES = [block for block in blocks_of(PAGE) if block.is_file]
VOLUMES = "spark.kubernetes.executor.volumes."
HERE = {
    "/opt/jet/bin/python": sys.executable,
    "--host head --port 7077": "--host 127.0.0.1 --port 0 --webui-port 0",
    "--cores 8 --memory 16g": "--host 127.0.0.1 --port 0 --webui-port 0 --cores 1 --memory 900m --work-dir work",
    "spark.executor.memory  4g": "spark.executor.memory  512m",
    "spark.executor.cores   4": "spark.executor.cores   1",
    "spark.cores.max        16": f"spark.cores.max        {WORKERS}",
    "driver.example": "127.0.0.1",
    "jet pipeline run": f"{sys.executable} -m jetbus.cli pipeline run",
    "--tables /srv": "--tables file:///srv",
    "--every 10s": "--every 100ms",
}
"""What the page says, and what it is here."""


def here(text: str, **more: str) -> str:
    """Words of the page, as they are typed here."""
    for theirs, ours in (HERE | more).items():
        text = text.replace(theirs, ours)
    return text


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
    "Twice of every number."
    return events.where("num is not null").select("bus", "ts", "seq", "path", double("num").alias("two"))
"""


class SparkDaemon:
    """A master or a worker, ended by its id."""

    def __init__(self, folder: Path, line: str) -> None:
        self._log = folder / f"{len(list(folder.iterdir()))}.log"
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"{here(EXPORT)}\nexec {line}"],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **LOOPBACK, **SMALL, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"},
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

    def executor(self, *, tasks: int) -> int | None:
        """Return the process id of the worker's executor once it has begun so many tasks, None before."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/children")  # a thread of the worker is the parent
        for child in [int(word) for thread in threads for word in thread.read_text().split()]:
            with contextlib.suppress(FileNotFoundError):  # it has just begun, or ended
                log = Path(f"/proc/{child}/cwd/stderr").read_text(errors="replace")
                if log.count("Running task") >= tasks:
                    return child
        return None

    def __exit__(self, *_exc: object) -> None:
        self._process.kill()
        self._process.wait()


class Cluster(NamedTuple):
    """A master with two workers of one core each."""

    url: str
    work: Path
    workers: tuple[SparkDaemon, ...]

    def busy_executors(self) -> int:
        """Return the number of executors that have run tasks."""
        logs = self.work.glob("*/*/stderr")
        return sum("Running task" in log.read_text(errors="replace") for log in logs)

    def command_of_executors(self) -> str:
        """Return the command line with which workers have started executors."""
        return "".join(log.read_text(errors="replace").partition("====")[0] for log in self.work.glob("*/*/stderr"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with SparkDaemon(folder, here(MASTER)) as master:
        url = master.until(r"Starting Spark master at (spark://\S+)")
        worker = here(WORKER, **{"spark://head:7077": url})
        # They join while the driver starts, which waits for both.
        with SparkDaemon(folder, worker) as one, SparkDaemon(folder, worker) as two:
            yield Cluster(url, folder / "work", (one, two))


def start(cluster: Cluster, folder: Path, urls: list[str], *options: str) -> subprocess.Popen[str]:
    """Start the pipeline of the page over journals behind daemons, in a process group of its own."""
    (folder / DEFAULTS.word).write_text(here(DEFAULTS.text))
    words = shlex.split(here(RUN, **{"spark://head:7077": cluster.url, "/srv": str(folder)}))
    words[words.index("--journal") + 1] = urls[0]
    return subprocess.Popen(
        [*words, *(word for url in urls[1:] for word in ("--journal", url)), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment(SETTINGS), "SPARK_CONF_DIR": str(folder)},
    )


@pytest.mark.timeout(1800)
def test_a_pipeline_on_a_cluster(cluster: Cluster, tmp_path: Path, start_daemon: Callable[..., Daemon]) -> None:
    """With --master the same command runs on workers, reads daemons, and goes on however often executors are killed.

    Its stream has a stage of the user's own; each event is once in every table, read by deltalake.
    """
    (tmp_path / "stages.toml").write_text(STAGES)
    (tmp_path / "twice.py").write_text(CODE)
    folders = {bus: tmp_path / "journals" / bus for bus in BUSES}
    daemons = [start_daemon("--journal", str(folder), "--journal-bus", bus) for bus, folder in folders.items()]
    urls = [f"jet://{daemon.listens['tcp']}" for daemon in daemons]
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(jetbus.Peer(url)) for url in urls]
        states = [peer.add_state("n", 0) for peer in peers]
        process = start(cluster, tmp_path, urls, "--stages", str(tmp_path / "stages.toml"))
        stack.callback(kill, process)
        assert process.stdout is not None
        assert set(json.loads(process.stdout.readline())["seqs"]) == set(BUSES)
        changes = kill_executors(cluster, process, states)
        for peer in peers:
            peer.call("$jet/journal/offsets")  # answered when all of it is in the journal
        wanted = {bus: newest(folder, bus) for bus, folder in folders.items()}
        for line in process.stdout:
            seqs = json.loads(line)["seqs"]
            if all(seqs[bus] >= wanted[bus] for bus in BUSES):
                break
        process.terminate()
        assert process.wait(READY_WITHIN_S) == 0
    tables = tmp_path / "tables"
    ends = last_seqs(tables)
    log = [event for bus, folder in folders.items() for event in read_log(folder, bus) if event.seq <= ends[bus]]
    assert_on_disk(tables, {"events": reference.events(log), "history": reference.history(log)})
    doubled = sorted(row["two"] for row in read_delta(tables, "twice").to_pylist())
    assert doubled == sorted(2.0 * number for number in range(changes + 1) for _ in BUSES)
    assert cluster.busy_executors() >= WORKERS
    assert set(re.findall(r"-Xmx(\w+)", cluster.command_of_executors())) == {"512M"}


def kill_executors(cluster: Cluster, process: subprocess.Popen[str], states: list[jetbus.State]) -> int:
    """Kill executors of a pipeline in turn, each after some tasks, while states change; gives the number of changes."""
    chance = random.Random(5)
    until_s = time.monotonic() + KILLS * READY_WITHIN_S
    changes = 0
    for nth in range(KILLS):
        tasks = chance.randint(1, TASKS_MAX)
        executor = None
        while executor is None:
            assert time.monotonic() < until_s, f"an executor does not begin {tasks} tasks after {nth} kills"
            changes += 1
            for state in states:  # so that there is always work, and at least one change for each kill
                state.change(changes)
            executor = cluster.workers[nth % WORKERS].executor(tasks=tasks)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                raise AssertionError(f"the pipeline ends with {process.returncode} after {nth} kills")
        os.kill(executor, signal.SIGKILL)
    return changes


def newest(folder: Path, bus: str) -> int:
    """Find the last change in a journal."""
    return max(event.seq for event in read_log(folder, bus) if event.event == "change")


def test_the_command_for_yarn(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command for YARN runs; here with another master, and until it has read the journals."""
    write_events(tmp_path / "journals" / "a", numbers(EVENTS, bus="a"), bus="a")
    variables, command = re.fullmatch(r"((?:\w+=\S+ )+)jet (.*)", RUN_ON_YARN).groups()  # type: ignore[union-attr]
    for variable in shlex.split(here(variables)):
        monkeypatch.setenv(*variable.split("="))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    line = command.replace("/mnt", str(tmp_path)).replace("--master yarn", "--master local[2] --once")
    assert run(shlex.split(line)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["events"] == EVENTS
    assert Tables(spark, tmp_path / "tables").frame("events").count() == EVENTS


def test_settings_for_kubernetes(spark: SparkSession) -> None:
    """Spark's own code for Kubernetes reads the settings of the page: executors of an image, with the site's volume."""
    java: Any = spark._jvm
    kubernetes, cluster = java.org.apache.spark.deploy.k8s, java.org.apache.spark.scheduler.cluster
    conf = java.org.apache.spark.SparkConf(False)
    for line in ON_KUBERNETES.commands:
        conf.set(*line.split())
    assert conf.get(kubernetes.Config.EXECUTOR_CONTAINER_IMAGE()).get() == "jet-spark"
    volume = kubernetes.KubernetesVolumeUtils.parseVolumesWithPrefix(conf, VOLUMES).head()
    assert (volume.mountPath(), volume.volumeConf().claimName()) == ("/srv", "site")
    assert cluster.SchedulerBackendUtils.getInitialTargetExecutorNumber(conf, 0) == 4
