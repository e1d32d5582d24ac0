"""One Spark session for the whole group of tests: starting one takes as long as ten of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from jetbus.spark import session

FOR_FEW_ROWS = {
    "spark__driver__extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__shuffle__partitions": "1",
}
"""With some hundred rows, compiling costs more than it gives."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    running = session("local[2]", name="tests", memory="2g", **FOR_FEW_ROWS)
    yield running
    running.stop()
