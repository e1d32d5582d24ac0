"""Errors of Spark's queries, in words of our own where the cause is ours, and told only once."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException as QueryError
from pyspark.errors import StreamingQueryException
from pyspark.logger import PySparkLogger

from jetbus.spark.errors import DataLoss, JetSparkError

__all__ = ["QueryError", "explained", "first_sentence", "tell_once"]

_OWN_ERROR = re.compile(r"jetbus\.[\w.]+\.(\w+): (.+)")


def tell_once() -> None:
    """Let Spark not log what is wrong with a query; it is in the error."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def first_sentence(problem: Exception) -> str:
    """Return Spark's objection to a query, without the plan that follows it."""
    return " ".join(str(problem).split("\n\n")[0].split("\n== SQL")[0].split(";")[0].split())


def explained(problem: Exception) -> Exception:
    """Return the error that ended a stream as it was first raised; Spark wraps it in its own."""
    if not isinstance(problem, StreamingQueryException):
        return problem
    found = _OWN_ERROR.findall(str(problem))
    kind, sentence = found[-1] if found else ("", f"Spark has ended the run: {first_sentence(problem)}")
    return DataLoss(sentence) if kind == "DataLoss" else JetSparkError(sentence)
