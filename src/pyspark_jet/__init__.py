"""Lets Spark find ``format("jet")`` by itself: it looks for ``DefaultSource`` in packages named ``pyspark_*``."""

from jetbus.spark.source import JetSource as DefaultSource

__all__ = ["DefaultSource"]
