"""The bus on Spark: the journal as a data source, tables made of it, and a pipeline that keeps them up to date.

Needs pyspark and Java 17: ``pip install 'jetbus[spark]'``.

    source            the data source;  ``options``, ``path_rules``, ``journals``, ``remote``, ``time_rows``
    pipeline          the stream of events into tables;  ``batch`` and its ``contents``, ``clock``, ``carried`` rows
    timeline          the events of each path in order;  ``elements``, ``rollups``, ``requests``, ``alarms``
    sql_text          stages as files of SQL;  ``user_stages``, ``expectations``, ``entries`` of their TOML files
    tables            the same stages for a whole log;  ``schemas``, columns and their meaning
    store             Delta Lake on disk;  ``footers``, ``location``, ``maintenance``, ``catalog`` for readers
    publishing        states of a pipeline;  ``sink``, ``query_methods``, ``sql_guard``, ``sql_allowed``
    spark_session     a session as jetbus needs it;  ``diagnosis`` of failures, ``spark_errors``
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import pyspark as _pyspark  # noqa: F401 - here, to name the missing package before anything else does
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "the Spark side needs pyspark; install it with: pip install 'jetbus[spark]'", name="pyspark"
    ) from _missing

from jetbus.spark.spark_errors import (
    BadAlarm,
    BadExpectation,
    BadOption,
    BadQuestion,
    BadStage,
    DataLoss,
    ExpectationFailed,
    JavaGone,
    JavaMissing,
    JetSparkError,
    NotTables,
    SetsFailed,
    SparkFailed,
)
from jetbus.spark.spark_session import session

if TYPE_CHECKING:
    from jetbus.spark.catalog import Tables, attach
    from jetbus.spark.pipeline import Batch, Pipeline
    from jetbus.spark.sink import Published, Publisher, publish
    from jetbus.spark.tables import read_journals

__all__ = [
    "BadAlarm",
    "BadExpectation",
    "BadOption",
    "BadQuestion",
    "BadStage",
    "Batch",
    "DataLoss",
    "ExpectationFailed",
    "JavaGone",
    "JavaMissing",
    "JetSparkError",
    "NotTables",
    "Pipeline",
    "Published",
    "Publisher",
    "SetsFailed",
    "SparkFailed",
    "Tables",
    "attach",
    "publish",
    "read_journals",
    "session",
]

_HOMES = {
    "Batch": "pipeline",
    "Pipeline": "pipeline",
    "Published": "sink",
    "Publisher": "sink",
    "Tables": "catalog",
    "attach": "catalog",
    "publish": "sink",
    "read_journals": "tables",
}


def __getattr__(name: str) -> Any:
    """Load the other names on first use: a Python process of Spark that only looks up the format needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'jetbus.spark' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"jetbus.spark.{_HOMES[name]}"), name)
    return globals()[name]
