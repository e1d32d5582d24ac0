"""Java machines that are cheap: with some hundred rows, compiling costs more than it gives, and memory is small.

One serves all tests of a run that need no start of their own, by the fixture ``spark``; those that start a command get
``environment``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
PRELOAD = Path(__file__).with_name("preload")
READY_WITHIN_S = 400
"""A Java machine that starts on a busy machine takes its time."""


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Daemons may take longer to start and to stop: Spark keeps the machine busy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("support.daemon.READY_WITHIN_S", "support.daemon.STOP_WITHIN_S", "jetbus.testing.START_S"):
            patch.setattr(name, READY_WITHIN_S)
        yield


def environment(settings: Mapping[str, str] = FOR_FEW_ROWS) -> dict[str, str]:
    """Environment in which the Spark of a command is cheap."""
    words = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    return {
        "JAVA_TOOL_OPTIONS": JAVA,
        "PYSPARK_SUBMIT_ARGS": f"{words} pyspark-shell",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PRELOAD), os.environ.get("PYTHONPATH")])),
    }


def start_session(folder: Path) -> SparkSession:
    """A session for which relative paths are below a folder, whatever the folder of the tests is later."""
    from jetbus.spark import session

    settings = {name.replace(".", "__"): value for name, value in FOR_FEW_ROWS.items()}
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        return session(
            "local[2]",
            name="tests",
            memory="2g",
            spark__driver__extraJavaOptions=JAVA,
            spark__sql__shuffle__partitions="1",
            **settings,
        )
