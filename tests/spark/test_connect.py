"""Spark Connect and Declarative Pipelines: the parts of the Spark side that work in somebody else's server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jetbus.spark import Pipeline
from jetbus.testing import running_daemon
from support.spark import machines
from support.spark.journals import numbers, write_events
from support.spark.machines import FOR_FEW_ROWS, JAVA, READY_WITHIN_S

EVENTS = 70
EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
PROGRAMS = Path(sys.executable).parent
ALARMS = """
[alarm.high]
rule = "n/**"
when = "num > 60"
"""
WITHIN_S = 1800


SETTINGS = {**FOR_FEW_ROWS, "spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}


def environment(folder: Path) -> dict[str, str]:
    """Give the environment of Spark's commands; settings that make them cheap go into a file of the folder."""
    lines = [f"{name}  {value}\n" for name, value in SETTINGS.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    own = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "JAVA_TOOL_OPTIONS": JAVA,
        "PYTHONPATH": machines.environment()["PYTHONPATH"],
    }
    return {**os.environ, **own}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A real Connect server, as `start-connect-server.sh` starts one; gives its address."""
    port = free_port()
    settings = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    command = ["spark-submit", "--master", "local[2]", *words]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with (tmp_path / "server.log").open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, cwd=tmp_path, env=environment(tmp_path), start_new_session=True
        )
        try:
            yield f"sc://127.0.0.1:{_await(process, port)}"
        finally:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int) -> int:
    """Wait until a server listens."""
    for _ in range(20 * READY_WITHIN_S):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return port
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            break
    raise AssertionError("the Connect server does not start")


@pytest.mark.timeout(WITHIN_S)
def test_a_client_of_spark_connect(spark: SparkSession, server: str, tmp_path: Path) -> None:
    """Source, sink, table functions, attach and publish work in a Connect session; a pipeline says where it can run."""
    write_events(tmp_path / "journal", numbers(EVENTS), bus="plant")
    (tmp_path / "alarms.toml").write_text(ALARMS)
    with Pipeline(spark, tmp_path / "journal", tmp_path / "tables") as pipeline:
        pipeline.run_once()
    with running_daemon() as daemon:
        client = Path(machines.__file__).with_name("connect_client.py")
        places = [str(tmp_path / name) for name in ("journal", "tables", "alarms.toml")]
        done = subprocess.run(
            [sys.executable, str(client), server, *places, daemon.url],
            capture_output=True,
            text=True,
            env=environment(tmp_path),
            timeout=WITHIN_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "start it there" in seen.pop("pipeline")
    assert "streams are published by a session in its own process" in seen.pop("stream")
    assert seen == {
        "events": EVENTS,
        "history": EVENTS,
        "rollups": 0,
        "alarms": 7,
        "attached": EVENTS,
        "set": {"pump/speed": 1200},
        "published": 7,
    }


@pytest.mark.timeout(WITHIN_S)
def test_a_declared_pipeline(tmp_path: Path) -> None:
    """The example of a declared pipeline runs to its end by Spark's own command and makes its tables."""
    shutil.copytree(EXAMPLE, tmp_path / "declared")
    folder = tmp_path / "declared"
    write_events(folder / "journal", numbers(EVENTS), bus="plant")
    spec = folder / "spark-pipeline.yml"
    places = {"storage: storage": f"storage: {(folder / 'storage').as_uri()}", ": journal": f": {folder / 'journal'}"}
    text = spec.read_text()
    for theirs, ours in places.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    spec.write_text(text)
    done = subprocess.run(
        ["spark-pipelines", "run"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def rows(table: str) -> int:
        files = (folder / "spark-warehouse" / table).glob("*.parquet")
        return sum(pq.read_metadata(file).num_rows for file in files)

    assert (rows("events"), rows("history")) == (EVENTS, EVENTS)
