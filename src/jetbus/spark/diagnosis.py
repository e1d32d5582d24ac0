"""Failures of Spark, its workers, disks and stores: which of them pass, and one sentence for each.

Spark ends a query for many reasons, and reports them as pages of Java: the cause is somewhere within, as a line of the
stack of another error. ``explain_failure`` looks for the marks of the known ones and returns ``SparkFailed`` with a
sentence about it. One that ``passes`` may be gone a moment later: a pipeline starts its query again then.

Errors of our own, such as ``DataLoss``, are returned as they were raised; they never pass. Anything else, such as a bug
in a function of the driver, is returned unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from jetbus.errors import JetError
from jetbus.spark.spark_errors import DataLoss, JavaGone, JetSparkError, SparkFailed

__all__ = ["JAVA_ERRORS", "explain_failure", "first_sentence"]

JAVA_ERRORS = (Py4JError, ConnectionError)
"""Errors of calls to a Java process that has ended."""


class Mark(NamedTuple):
    """A known failure, by a pattern of the texts of an error and its causes."""

    pattern: re.Pattern[str]
    passes: bool
    sentence: str
    """With ``{found}`` for the first group of the pattern, ``{table}`` and ``{place}`` for the tables."""


_MARKS = tuple(
    Mark(re.compile(pattern), passes, sentence)
    for pattern, passes, sentence in (
        (
            r"No space left on device|Disk quota exceeded",
            True,
            "{table}could not be written because a disk is full; free space at {place}, and at Spark's own folder",
        ),
        (
            r"OutOfMemoryError|GC overhead limit|maxResultSize",
            False,
            "Spark has run out of memory; make batches smaller with --batch-events, or raise spark.driver.memory",
        ),
        (
            r"Python worker (?:failed to connect back|exited unexpectedly|process terminated)|PYTHON_WORKER|"
            r"EOFException.*PythonRunner|Cannot run program",
            True,
            "a Python worker of Spark did not start in time, or has ended; give the machine more memory or less to do",
        ),
        (
            r"ExecutorLostFailure|FetchFailed|Executor heartbeat timed out|executor \S+ (?:lost|exited)|"
            r"Executor \S+ (?:is )?(?:lost|removed)|BlockNotFoundException|Failed to get broadcast",
            True,
            "an executor of Spark was lost; look at the log of its worker",
        ),
        (
            r"(?:Path does not exist: |File does not exist: |FILE_NOT_EXIST\S* File |FileNotFoundException: (?:File )?|"
            r"Object at location )(?:file:)?(\S+?)\.?(?=\s|$)",
            False,
            "{table}has lost its data file {found}; restore it from a backup, or make the tables anew in another place",
        ),
        (
            r"Permission denied|AccessDenied|Access Denied|Forbidden|lacked the necessary privileges|"
            r"lacked valid authentication",
            False,
            "{table}may not be read or written at {place}; check the permissions there, or the login of the store",
        ),
        (
            r"Connection refused|Connection reset|connection closed|ConnectException|SocketTimeout|UnknownHost|"
            r"NoRouteToHost|NoHttpResponse|SlowDown|Service Unavailable|error sending request|operation timed out|"
            r"Read timed out|dns error|Max retries exceeded",
            True,
            "the store of the tables at {place} does not answer; check that it is running and can be reached",
        ),
    )
)
"""The first row that fits has the sentence: precise sentences come before general ones."""
_AWAY = ("NotConnected", "TimedOut")
"""Errors of the bus that pass when a daemon is back."""
_OWN_ERROR = re.compile(r"jetbus\.[\w.]+\.(\w+): (.+)")
_PYTHON_ERROR = re.compile(r"^(?:[a-z]\w*\.)*[A-Z]\w*(?:Error|Exception|Failed|Warning|Interrupt): .+$", re.MULTILINE)
"""Last line of a traceback of Python."""
_JAVA_ERROR = re.compile(r"^(?:Caused by|:) ?:?\s*(?:[a-z]\w*\.)+(\w+): (.+)$", re.MULTILINE)


def explain_failure(problem: BaseException, place: str) -> BaseException:
    """Return an error of Spark, or of tables at a place, as one sentence; any other error as it is."""
    chain = list(_chain(problem))
    own = next((one for one in chain if isinstance(one, JetSparkError)), None)
    if any(isinstance(one, Py4JNetworkError | ConnectionError) or _is_cut_off(one) for one in chain):
        return JavaGone(
            "the Java process of Spark has ended: it was killed, or had no memory left; start the pipeline again, and "
            "it goes on after its last batch"
        )
    if not any(isinstance(one, PySparkException | Py4JError | DeltaError | OSError | JetError) for one in chain):
        return own or problem
    text = "\n".join(f"{type(one).__module__}.{type(one).__name__}: {_plain(one)}" for one in chain)
    named = _OWN_ERROR.findall(text)
    # Spark quotes all causes, one within the other. The last of ours is the first that was raised.
    kinds, sentence = [kind for kind, _ in named], named[-1][1] if named else ""
    if any(kind in _AWAY for kind in kinds):
        return SparkFailed(f"a daemon does not answer: {sentence}", passes=True)
    for mark in _MARKS:
        if (found := mark.pattern.search(text)) is not None:
            words = {"place": place, "table": _table(text, place), "found": (*found.groups(), "")[0]}
            return SparkFailed(mark.sentence.format(**words), passes=mark.passes)
    if own is not None:
        return own
    if named:
        return DataLoss(sentence) if kinds[-1] == "DataLoss" else JetSparkError(sentence)
    return SparkFailed(f"Spark has ended the run: {_cause(problem, text)}", passes=False)


def _chain(problem: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = problem
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _is_cut_off(problem: BaseException) -> bool:
    """Return True for a call to Java that Java could not answer any more."""
    is_call = isinstance(problem, Py4JError) and not isinstance(problem, Py4JJavaError)
    return is_call and "Answer from Java side is empty" in str(problem)


def _plain(problem: BaseException) -> str:
    """Return the text of an error and its notes; delta-rs writes in colour."""
    notes = getattr(problem, "__notes__", ())
    return re.sub(r"\x1b\[\d*m|↳", "", "\n".join([str(problem), *notes]))


def _table(text: str, place: str) -> str:
    """Name the table that a text is about, as the subject of a sentence."""
    found = re.search(rf"{re.escape(place.rstrip('/'))}/(\w+)/", text)
    return f"the table {found[1]!r} " if found is not None else "a table "


def _cause(problem: BaseException, text: str) -> str:
    """Return the first cause: the last error of Python that is quoted, or the last of Java."""
    if found := _PYTHON_ERROR.findall(text):
        return str(found[-1])
    if java := _JAVA_ERROR.findall(text):
        return f"{java[-1][1]} ({java[-1][0]})"
    return first_sentence(problem)


def first_sentence(problem: BaseException) -> str:
    """Return Spark's objection to a query, without the plan that follows it."""
    return " ".join(str(problem).split("\n\n")[0].split("\n== SQL")[0].split(";")[0].split())
