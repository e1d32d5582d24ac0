"""Whole journals as a batch, each part of them read by who reads it best.

    log = read_journals(spark, "/var/lib/jet/journal")
    tables.rollups(log, "1m").show()

What has been compacted is Parquet, which Spark scans by itself, skips by column and by path, and reads several times as
fast as any source written in Python. What has not is read by format ``jet``. The two are cut at a seq, so that an
event is in one of them only.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.journal.manifest import read_manifest
from jetbus.spark.folders import FolderBus
from jetbus.spark.schemas import JOURNAL, schema_of

__all__ = ["read_journals"]


def read_journals(spark: SparkSession, *folders: str | Path) -> DataFrame:
    """The events of some journals in folders of this machine, as ``spark.read.format("jet")`` gives them."""
    parts = [part for folder in folders for part in _parts(spark, FolderBus(Path(folder)))]
    return reduce(DataFrame.unionByName, parts)


def _parts(spark: SparkSession, bus: FolderBus) -> list[DataFrame]:
    compacted = read_manifest(bus.place)
    rest = spark.read.format("jet").option("start", str(compacted.upto + 1)).load(str(bus.place))
    if not compacted.spans:
        return [rest]
    # The name of the bus is not in its files.
    stored = schema_of(tuple(column for column in JOURNAL if column.name != "bus"))
    files = [str(bus.place / span.file) for span in compacted.spans]
    native = spark.read.schema(stored).parquet(*files).withColumn("bus", F.lit(bus.name))
    return [native.select(*rest.columns), rest]
