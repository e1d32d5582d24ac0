"""Spark program of the demo: makes tables of a journal, and publishes rollups and alarms on the bus.

    python -m jetbus.demo.tables JOURNAL TABLES URL

It prints ``reading`` when Spark is running, or one line with the reason if it cannot start. SIGTERM ends it and Java.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PREFIX = "spark"
"""Prefix of the published paths."""
ALARMS = Path(__file__).with_name("alarms.toml")
MASTER, MEMORY = "local[2]", "1g"
SMALL_BATCH_SETTINGS = {
    "spark__driver__extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__shuffle__partitions": "1",
}
"""Settings for batches of some hundred rows, for which compiling queries takes longer than running them."""
LOOK_S = 1


def main(journal: str, tables: str, url: str) -> int:
    """Run until stopped, and return the exit code."""
    # Before Spark is imported, which takes a while in which the demo may end.
    signal.signal(signal.SIGTERM, _stop)
    try:
        from jetbus.spark import JetSparkError, Pipeline, session
    except ModuleNotFoundError as problem:
        return _report_failure(problem)
    try:
        spark = session(MASTER, name="jet demo", memory=MEMORY, **SMALL_BATCH_SETTINGS)
        # The bus is open to everybody on this machine, so queries are, too.
        with Pipeline(
            spark, journal, tables, alarm_file=ALARMS, publish=PREFIX, publish_url=url, query_open=True
        ) as pipeline:
            pipeline.start()
            print("reading", flush=True)
            while not pipeline.wait(LOOK_S):
                pass
    except JetSparkError as problem:
        return _report_failure(problem)
    return 0


def _report_failure(problem: Exception) -> int:
    # The demo reads a single line.
    print(" ".join(str(problem).split()), flush=True)
    return 1


def _stop(*_: object) -> None:
    """Stop Java, wait for it, and exit. The tables are removed with the demo, so no batch has to be finished."""
    # The signal to the group below reaches this process as well. Java is deaf to SIGTERM, see ``spark.session``.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.getpgrp() == os.getpid():  # the process group then consists of our own children
        os.killpg(os.getpgrp(), signal.SIGHUP)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        # Without the cleanup of Python, in which pyspark would talk to the Java that has just ended.
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
