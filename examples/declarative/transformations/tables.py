"""Tables of a bus, declared: Spark finds out what depends on what, and keeps them up to date.

The streaming table reads each event of the journal once; the views over it are made of the stages of jetbus.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from jetbus.spark import tables

spark = SparkSession.active()


@dp.table
def events() -> DataFrame:
    """Every event, with its value in a column of its type."""
    log = spark.readStream.format("jet").load(spark.conf.get("spark.jet.journal"))
    return tables.events(log).drop("doc")


@dp.materialized_view
def history() -> DataFrame:
    """One row per value of a state, with the time it was in force."""
    return tables.history(spark.read.table("events"))


@dp.materialized_view
def rollups() -> DataFrame:
    """Numbers per state and minute."""
    return tables.rollups(spark.read.table("events"), "1m")
