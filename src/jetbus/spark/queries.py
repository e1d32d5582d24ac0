"""What whoever runs queries of people needs of Spark: what is raised for a wrong one, and that it is told only once."""

from __future__ import annotations

from pyspark.errors import PySparkException as QueryError
from pyspark.logger import PySparkLogger

__all__ = ["QueryError", "first_sentence", "tell_once"]


def tell_once() -> None:
    """Let Spark not log what is wrong with a query; it is in the error."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def first_sentence(problem: Exception) -> str:
    """What Spark has against a query, without its plan."""
    return " ".join(str(problem).split("\n\n")[0].split("\n== SQL")[0].split(";")[0].split())
