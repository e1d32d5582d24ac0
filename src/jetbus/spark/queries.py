"""What whoever runs queries and jobs needs of Spark: what is raised for a wrong one, in our own words where it is ours,
and that it is told only once."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError as JobError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException as QueryError
from pyspark.errors import StreamingQueryException
from pyspark.logger import PySparkLogger

from jetbus.spark.errors import DataLoss, JetSparkError

__all__ = ["JobError", "QueryError", "explained", "first_sentence", "tell_once"]

_OWN_ERROR = re.compile(r"jetbus\.[\w.]+\.(\w+): (.+)")


def tell_once() -> None:
    """Let Spark not log what is wrong with a query; it is in the error."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def first_sentence(problem: Exception) -> str:
    """What Spark has against a query, without its plan."""
    return " ".join(str(problem).split("\n\n")[0].split("\n== SQL")[0].split(";")[0].split())


def explained(problem: Exception) -> Exception:
    """What ended a stream or a job, in the words of the one who said so first; Spark wraps it in its own."""
    if not isinstance(problem, StreamingQueryException | JobError):
        return problem
    found = _OWN_ERROR.findall(str(problem))
    kind, sentence = found[-1] if found else ("", f"Spark has ended the run: {first_sentence(problem)}")
    return DataLoss(sentence) if kind == "DataLoss" else JetSparkError(sentence)
