"""Spark for ``jet pipeline``, ``jet sql`` and ``jet tables``: shared options, starting a session, explaining errors.

Spark takes seconds to start, so everything that can be checked without it is checked first. Spark is imported only by
the functions that need it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.exit_codes import Code, Failure, usage_error
from jetbus.cli.journals import explain_errors, format_time
from jetbus.cli.progress import show_bar
from jetbus.json_types import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from jetbus.spark.location import Location

_NEEDED = ("deltalake", "sqlglot")
"""Libraries that tables need besides pyspark."""

master_option = click.option("--master", metavar="URL", help="Spark's master; default: local[*]")
tables_option = click.option("--tables", required=True, metavar="DIR|URI", help="folder or URI of the tables")


def _read_storage(_ctx: click.Context, _option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in pairs:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise usage_error(f"--storage takes KEY=VALUE, such as AWS_REGION=eu-central-1, not {text!r}")
        found[name] = value
    return found


storage_option = click.option(
    "--storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_read_storage,
    help="setting of the object store, such as AWS_ENDPOINT_URL=...; repeatable; keep secrets in the environment",
)


class UiPort(click.ParamType[str]):
    """Parameter type for a port or ``off``."""

    name = "port"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        text = str(value)
        is_port = text.isascii() and text.isdigit() and PORT_MIN <= int(text) <= PORT_MAX
        if text != "off" and not is_port:
            raise usage_error(f"--ui takes a port from {PORT_MIN} to {PORT_MAX}, or off, not {text!r}")
        return text


PORT_MIN, PORT_MAX = 1024, 65535
"""Range of ports that Spark accepts."""
ui_option = click.option(
    "--ui",
    type=UiPort(),
    metavar="PORT|off",
    help="port of Spark's UI; default: 4040 or the next free one, and off on a cluster",
)
journals_option = click.option(
    "--journal",
    "-j",
    "journals",
    required=True,
    multiple=True,
    metavar="DIR|URL",
    help="journal folder, pattern or daemon; repeatable",
)


def find_tables(place: str, storage: dict[str, str] | None = None) -> Location:
    """Return the place of tables, after a look whether it is that of a journal instead."""
    from jetbus.spark.location import read_location

    found = read_location(place, storage)
    # Easily mixed up, and then the tables would be written among the segments.
    if found.local is not None and (found.local / "journal.json").exists():
        raise usage_error(
            f"{place} is a journal, not a place for tables; read it with --journal {place}, and give tables a folder of"
            " their own"
        )
    return found


@contextmanager
def explain_spark_errors() -> Iterator[None]:
    """Turn errors of Spark and of the tables into failures with exit codes."""
    with explain_errors():
        try:
            # The first import of the package, which refuses to be imported without pyspark.
            from jetbus.spark.spark_errors import BadOption, JetSparkError, NotTables
        except ModuleNotFoundError as problem:
            if problem.name != "pyspark":
                raise
            raise Failure(str(problem)) from None
        try:
            yield
        except ModuleNotFoundError as problem:
            if problem.name not in _NEEDED:
                raise
            raise Failure(f"tables need {problem.name}; install it with: pip install 'jetbus[spark]'") from None
        except BadOption as problem:
            raise usage_error(str(problem)) from None
        except NotTables as problem:
            raise Failure(str(problem), Code.NOT_FOUND) from None
        except JetSparkError as problem:
            raise Failure(str(problem)) from None


def start_spark(master: str | None, *, ui: str | None = "off") -> SparkSession:
    """Start Spark behind a progress bar, or return the session that is running.

    ``ui`` is the port of its UI; None lets Spark choose. Since the port may be in use, the actual address is printed.
    """
    from jetbus.spark.spark_session import session, ui_address, ui_settings

    settings = {} if ui == "off" else ui_settings(master, None if ui is None else int(ui))
    with show_bar("starting Spark"), _capture_stderr():
        spark = session(master, name="jet", **settings)
    from jetbus.spark.spark_session import silence_query_log

    silence_query_log()
    address = None if ui == "off" else ui_address(spark)
    if address is not None:
        print(f"Spark's UI is at {address}", file=sys.stderr, flush=True)
    return spark


@contextmanager
def _capture_stderr() -> Iterator[None]:
    """Keep the start messages of Java off stderr; they are used for the error if Spark does not start."""
    if "--debug" in sys.argv:
        yield
        return
    with tempfile.TemporaryFile() as captured:
        # The descriptor and not sys.stderr, because Java is a process of its own that inherits it.
        stderr = os.dup(2)
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except Exception as problem:
            from jetbus.spark.spark_errors import JetSparkError

            # It names the missing part already, better than the output of Java does.
            if isinstance(problem, JetSparkError):
                raise
            captured.seek(0)
            lines = captured.read().decode(errors="replace").strip().splitlines() or [str(problem)]
            raise Failure(f"Spark does not start: {lines[-1]}; --debug shows its whole output") from problem
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def check_journals(journals: Sequence[str], **login: str) -> dict[str, str]:
    """Return the options of the data source for some journals; fail if one of them cannot be opened."""
    import jetbus.journal
    from jetbus.spark.options import read_options
    from jetbus.spark.pipeline import where
    from jetbus.spark.remote import connect

    found = {**where(journals), **login}
    if "url" not in found:
        jetbus.journal.open(*journals)
    for daemon in read_options(found).daemons if "url" in found else ():
        # Only to fail now, in one line, instead of seconds later in a worker of Spark.
        connect(daemon).close()
    return found


def iterate_rows(frame: DataFrame) -> Iterator[JsonObject]:
    """Yield the rows of a DataFrame as records."""
    return read_records(frame.toArrow().to_batches())


def read_records(batches: Iterable[RecordBatch]) -> Iterator[JsonObject]:
    """Yield the rows of batches of Arrow as records."""
    # One batch at a time becomes Python objects, which take many times the memory of Arrow.
    for batch in batches:
        for row in batch.to_pylist():
            yield {name: _to_jsonable(value) for name, value in row.items()}


def _to_jsonable(value: Any) -> Json:
    """Return a column value that JSON can represent."""
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _to_jsonable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_jsonable(one) for one in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None  # not a number in JSON
    return value if value is None or isinstance(value, bool | int | float | str | bytes) else str(value)
