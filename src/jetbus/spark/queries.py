"""What whoever runs queries of people needs of Spark: what is raised for a wrong one, and that it is told only once."""

from __future__ import annotations

from pyspark.errors import PySparkException as QueryError
from pyspark.logger import PySparkLogger

__all__ = ["QueryError", "tell_once"]


def tell_once() -> None:
    """Let Spark not log what is wrong with a query; it is in the error."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
