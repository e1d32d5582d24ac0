"""Errors of the Spark side, named by the action that they call for.

    JetSparkError
        JavaMissing     Spark needs Java 17 and found none
        JavaGone        the Java process of Spark has ended; only another process can start one
        BadOption       an option, a column or a rule that makes no sense; ``option`` has its name
            BadAlarm        an entry of an alarm file that makes no sense
            BadStage        a stage of a user's file that makes no sense
            BadExpectation  an expectation of a file that makes no sense
        BadQuestion     SQL that is not a query over the tables
        DataLoss        events that a checkpoint still needs are gone from the journal
        ExpectationFailed   rows of a batch that do not meet an expectation which ends the pipeline
        NotTables       a directory that holds no tables of a pipeline, or those of another one
        SetsFailed      set requests that the bus refused; ``failed`` has them
        SparkFailed     Spark, a disk or a store has failed; ``passes`` says whether it may work a moment later

All of them are raised in the driver. Most come before a job starts; ``DataLoss`` and ``SparkFailed`` may end a running
stream, ``ExpectationFailed`` ends a batch before it is committed, and ``SetsFailed`` comes after the job.
"""

from __future__ import annotations

from functools import partial
from typing import Any

__all__ = [
    "BadAlarm",
    "BadExpectation",
    "BadOption",
    "BadQuestion",
    "BadStage",
    "DataLoss",
    "ExpectationFailed",
    "JavaGone",
    "JavaMissing",
    "JetSparkError",
    "NotTables",
    "SetsFailed",
    "SparkFailed",
]


class JetSparkError(Exception):
    """Anything that went wrong on the Spark side."""


class JavaMissing(JetSparkError):
    """Spark needs Java 17 and found none."""


class JavaGone(JetSparkError):
    """The Java process of Spark has ended."""


class SparkFailed(JetSparkError):
    """Spark, a disk or a store has failed."""

    def __init__(self, message: str, *, passes: bool) -> None:
        super().__init__(message)
        self.passes = passes
        """True if it may work a moment later, so that a pipeline tries again."""

    def __reduce__(self) -> Any:
        return partial(SparkFailed, passes=self.passes), (str(self),)


class BadOption(JetSparkError, ValueError):
    """An option, a column or a rule that makes no sense."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(option, problem)
        self.option = option
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.problem}"


class BadAlarm(BadOption):
    """An entry of an alarm file that makes no sense."""

    def __str__(self) -> str:
        return f"alarm {self.option!r}: {self.problem}"


class BadStage(BadOption):
    """A stage of a file that makes no sense."""

    def __str__(self) -> str:
        return f"stage {self.option!r}: {self.problem}"


class BadExpectation(BadOption):
    """An expectation of a file that makes no sense."""

    def __str__(self) -> str:
        return f"expectation {self.option!r}: {self.problem}"


class ExpectationFailed(JetSparkError):
    """Rows of a batch that do not meet an expectation which ends the pipeline."""


class BadQuestion(JetSparkError, ValueError):
    """SQL that is not a query over the tables."""


class DataLoss(JetSparkError):
    """Events that a checkpoint still needs are gone from the journal."""


class NotTables(JetSparkError):
    """A directory that holds no tables of a pipeline, or those of another one."""


class SetsFailed(JetSparkError):
    """Set requests that the bus refused."""

    def __init__(self, message: str, failed: list[tuple[str, str]]) -> None:
        super().__init__(message, failed)
        self.message = message
        self.failed = failed
        """Path and reason of each, up to a limit."""

    def __str__(self) -> str:
        return self.message
