"""The Spark side of the demo as a program: makes tables of a journal, and publishes rollups and alarms on the bus.

    python -m jetbus.demo.tables JOURNAL TABLES URL

Prints ``reading`` when Spark is up, or one line that says why it cannot be. SIGTERM ends it with its Java.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PREFIX = "spark"
"""Below which rollups and alarms are on the bus."""
ALARMS = Path(__file__).with_name("alarms.toml")
MASTER, MEMORY = "local[2]", "1g"
FOR_FEW_ROWS = {
    "spark__driver__extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__shuffle__partitions": "1",
}
"""With some hundred rows a batch, compiling costs more than it gives."""
LOOK_S = 1


def main(journal: str, tables: str, url: str) -> int:
    """Run until stopped; gives the exit code."""
    signal.signal(signal.SIGTERM, _end)
    try:
        from jetbus.spark import JetSparkError, Pipeline, session
    except ModuleNotFoundError as problem:
        return _left_out(problem)
    try:
        spark = session(MASTER, name="jet demo", memory=MEMORY, **FOR_FEW_ROWS)
        # Its bus is open to everybody on this machine, so everybody may ask, too.
        with Pipeline(
            spark, journal, tables, alarm_file=ALARMS, publish=PREFIX, publish_url=url, query_open=True
        ) as pipeline:
            pipeline.start()
            print("reading", flush=True)
            while not pipeline.wait(LOOK_S):
                pass
    except JetSparkError as problem:
        return _left_out(problem)
    return 0


def _left_out(problem: Exception) -> int:
    print(" ".join(str(problem).split()), flush=True)
    return 1


def _end(*_: object) -> None:
    """End Java, wait for it, and end; what the tables hold goes with the demo, so nothing has to be finished."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.getpgrp() == os.getpid():  # nobody is in our group but those whom we have started
        os.killpg(os.getpgrp(), signal.SIGTERM)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
