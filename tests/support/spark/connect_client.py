"""A client of Spark Connect, run as a program: it uses all of the Spark side that works there and prints what it saw.

python connect_client.py sc://127.0.0.1:15002 JOURNAL TABLES ALARMS jet://127.0.0.1:11122
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import jetbus
from jetbus.spark import JetSparkError, Pipeline, attach, publish, tables


def main(remote: str, journal: str, place: str, alarms: str, url: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    seen: dict[str, Any] = {}
    log = spark.read.format("jet").load(journal)
    seen["events"] = tables.events(log).count()
    seen["history"] = tables.history(log).count()
    seen["rollups"] = tables.rollups(log, "1s").count()
    seen["alarms"] = tables.alarms(log, alarms).count()
    attach(spark, place)
    seen["attached"] = spark.sql("select count(*) as n from history").collect()[0]["n"]
    with jetbus.Peer(url) as owner:
        owner.add_state("pump/speed", 0, on_set=lambda value: value)
        wanted = spark.createDataFrame([("pump/speed", "1200")], "path string, value string")
        wanted.write.format("jet").option("url", url).mode("append").save()
        seen["set"] = owner.get_all("pump/speed")
        newest = spark.sql("select path, max(num) as value from history group by path")
        with publish(newest, url=url, prefix="connect"):
            seen["published"] = len(owner.get_all("connect/**"))
    try:
        publish(spark.readStream.format("jet").load(journal).select("path", "value"), url=url, prefix="stream")
    except JetSparkError as problem:
        seen["stream"] = str(problem)
    try:
        Pipeline(spark, journal, place)
    except JetSparkError as problem:
        seen["pipeline"] = str(problem)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
