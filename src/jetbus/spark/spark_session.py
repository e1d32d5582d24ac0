"""One place that makes a Spark session as jetbus needs it: Python workers of this interpreter, UTC, Arrow, few shuffle
partitions, quiet logs.

    spark = jetbus.spark.session()

A session that exists already, such as a notebook's, is used as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException as QueryError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from jetbus.spark.spark_errors import JavaMissing

__all__ = [
    "QueryError",
    "count_cores",
    "count_tasks",
    "pipeline_session",
    "session",
    "silence_query_log",
    "ui_address",
    "ui_settings",
]

MEMORY = "2g"
SHUFFLES_PER_CORE = 1
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable that ``spark-submit`` sets for a program that it starts."""
_JAVA = "spark.driver.extraJavaOptions"
_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")
"""Environment variables that may have options of Java."""

SETTINGS: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # A stage writes rows of several tables and days at once; without open writers for each it would sort first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Success markers are noise: Delta logs say which files count.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # A batch without events has nothing to tell.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "20ms",
    # One batch runs more generated classes than the default cache of 100 holds; it would compile all of them each time.
    "spark.sql.codegen.cache.maxEntries": "4000",
    # Rows kept in memory are read once or twice: searching the best compression takes longer than all else.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # To remember where in Python each expression was made takes two calls to Java for each of them.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of every session that we make; ``settings`` of ``session`` win over these."""

LOCAL_SETTINGS: dict[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(master: str | None = None, *, name: str = "jetbus", memory: str = MEMORY, **settings: str) -> SparkSession:
    """Return the running session, or a new one: local with all cores unless ``master`` says otherwise.

    Further ``settings`` are Spark's own with ``__`` for dots: ``spark__ui__enabled="true"``. In a program that
    ``spark-submit`` has started, its master and its settings count where none are given here.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    own = {key.replace("__", "."): value for key, value in settings.items()}
    if SUBMITTED in os.environ:
        return _submitted_session(master, name, own)
    check_java()
    chosen = _chosen(master)
    # Workers of another interpreter fail with errors that tell nothing of it.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = SparkSession.builder.master(chosen).appName(name).config("spark.driver.memory", memory)
    own[_JAVA] = _java_options(own.get(_JAVA, ""))
    for key, value in {**_defaults(chosen), **own}.items():
        builder = builder.config(key, value)
    with _deaf_to_sigterm():
        made: SparkSession = builder.getOrCreate()
    return made


def _submitted_session(master: str | None, name: str, own: dict[str, str]) -> SparkSession:
    """Return the session of a program that ``spark-submit`` has started: Java is running, with settings of its own."""
    builder: Any = SparkSession.builder.appName(name)
    chosen = {} if master is None else {"spark.master": master}
    for key, value in {**chosen, **own}.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    for key, value in SETTINGS.items():
        # Others were fixed when Java started; a setting with a value was chosen by the user.
        if made.conf.isModifiable(key) and made.conf.get(key, None) is None:
            made.conf.set(key, value)
    return made


_starting = threading.local()
"""Its attribute ``java`` is set in a thread that is starting Java."""


PIPELINE_SETTINGS: dict[str, str] = {
    # Rows of several days are written at once. Without open writers for each, Spark would sort them by day.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Footers have no ranges of the former type of instants.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The number of tasks follows from the rows of a batch, which are known. To adapt plans, Spark would run each part
    # of a query as a job of its own.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of the session that a pipeline works in."""


def pipeline_session(spark: SparkSession) -> SparkSession:
    """Return a new session for a pipeline, with the settings of another one and its own; the other stays as it is."""
    made = spark.newSession()
    for name, value in {**spark.conf.getAll, **PIPELINE_SETTINGS}.items():
        if made.conf.isModifiable(name) and made.conf.get(name, None) != value:
            made.conf.set(name, value)
    return made


def count_tasks(spark: SparkSession) -> int:
    """Return how many tasks a stage has in a session, at the most."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


@contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
    """Let the Java process that is started meanwhile ignore SIGTERM.

    Whoever stops a service signals all of its processes. Java would take the query with it before its batch is over,
    and before Python can end it. It still ends with the Python that has started it, however that ends: it reads a pipe
    from there.
    """
    _starting.java = True
    try:
        yield
    finally:
        _starting.java = False


def _after_fork() -> None:
    if getattr(_starting, "java", False):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


# PySpark starts Java with a function of its own to run before it, so that Python calls these hooks in the child.
os.register_at_fork(after_in_child=_after_fork)


def _chosen(master: str | None) -> str:
    return master or os.environ.get("SPARK_MASTER") or "local[*]"


def ui_settings(master: str | None, port: int | None = None) -> dict[str, str]:
    """Return the settings of a session that has Spark's UI, at a port of this machine alone; Spark's is 4040.

    Spark moves on to the next port if one is taken. On a cluster its UI is open to the network, so that there it takes
    a ``port`` that the user has chosen.
    """
    if port is None and not _chosen(master).startswith("local"):
        return {}
    return {"spark__ui__enabled": "true", **({} if port is None else {"spark__ui__port": str(port)})}


def ui_address(spark: SparkSession) -> str | None:
    """Return the address of Spark's UI; None if it is off."""
    if is_remote():
        return None
    address: str | None = spark.sparkContext.uiWebUrl
    return address


def _defaults(master: str) -> dict[str, str]:
    local = master.startswith("local")
    return {
        **SETTINGS,
        **(LOCAL_SETTINGS if local else {}),
        "spark.sql.shuffle.partitions": str(_cores(master) * SHUFFLES_PER_CORE),
    }


def _java_options(wanted: str) -> str:
    """Return options of Java besides those that are wanted: the logging, and a garbage collector if none is chosen."""
    # This collector has the least work in all: large batches take a tenth less of the processor than with Java's own
    # choice, and its pauses delay no other work. Java does not start with two of them.
    everywhere = " ".join([wanted, *(os.environ.get(name, "") for name in _JAVA_VARIABLES)])
    collector = [] if _COLLECTOR.search(everywhere) else ["-XX:+UseParallelGC"]
    return " ".join([_LOGGING, *collector, wanted]).strip()


def count_cores(spark: SparkSession) -> int:
    """Return the cores of a session with a local master; on a cluster a number that is large enough."""
    return _cores(spark.conf.get("spark.master", None) or "local[1]")


def _cores(master: str) -> int:
    """Return the cores of a local master; on a cluster a number that is large enough: AQE merges partitions."""
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    if not master.startswith("local"):
        return 64
    if inside == "*":
        return os.cpu_count() or 1
    return int(inside) if inside.isdigit() else 1


def check_java() -> None:
    """Raise ``JavaMissing`` unless there is a Java for Spark to run on."""
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        raise JavaMissing(f"JAVA_HOME is {home!r}, but there is no bin/java in it; set it to a Java 17 or unset it")
    if not home and shutil.which("java") is None:
        raise JavaMissing(
            "Spark needs Java 17 and there is no 'java' on the PATH; install it "
            "(Debian and Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) "
            "or set JAVA_HOME to where it is"
        )


# -- errors of queries


def silence_query_log() -> None:
    """Keep Spark from logging errors of a query: they are raised."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
