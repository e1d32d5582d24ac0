"""The bus on Spark: the journal as a data source, tables made of it, and a pipeline that keeps them up to date.

Needs pyspark and Java 17: ``pip install 'jetbus[spark]'``.
"""

from __future__ import annotations

try:
    import pyspark as _pyspark  # noqa: F401 - here, to say what is missing before anything else does
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "the Spark side needs pyspark; install it with: pip install 'jetbus[spark]'", name="pyspark"
    ) from _missing

from jetbus.spark.errors import (
    BadAlarm,
    BadOption,
    BadQuestion,
    BadStage,
    DataLoss,
    JavaMissing,
    JetSparkError,
    NotTables,
    SetsFailed,
)
from jetbus.spark.journals import read_journals
from jetbus.spark.pipeline import Batch, Pipeline
from jetbus.spark.session import session
from jetbus.spark.sink import Published, Publisher, publish
from jetbus.spark.store import Tables, attach

__all__ = [
    "BadAlarm",
    "BadOption",
    "BadQuestion",
    "BadStage",
    "Batch",
    "DataLoss",
    "JavaMissing",
    "JetSparkError",
    "NotTables",
    "Pipeline",
    "Published",
    "Publisher",
    "SetsFailed",
    "Tables",
    "attach",
    "publish",
    "read_journals",
    "session",
]
