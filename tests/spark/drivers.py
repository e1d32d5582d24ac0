"""The pipeline as a process of its own, with a Java machine below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

READY_WITHIN_S = 400
"""A Java machine that starts on a busy machine takes its time."""
FOR_FEW_ROWS = """
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.adaptive.enabled false
"""
"""With some dozen rows, compiling costs more than it gives."""


JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start(journals: Sequence[str], tables: Path, *options: str, settings: str = FOR_FEW_ROWS) -> subprocess.Popen[str]:
    """Start a pipeline over these journals, in a process group of its own."""
    folder = tables.with_name("settings")
    folder.mkdir(exist_ok=True)
    (folder / "spark-defaults.conf").write_text(settings)
    places = [word for journal in journals for word in ("--journal", journal)]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "jetbus.spark.run", *places, "--tables", str(tables)),
            *("--master", "local[1]", *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "SPARK_CONF_DIR": str(folder), "JAVA_TOOL_OPTIONS": JAVA},
    )


def kill(process: subprocess.Popen[str]) -> None:
    """End the driver and its Java machine at once, as a power cut would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
