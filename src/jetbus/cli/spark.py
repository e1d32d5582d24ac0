"""What the commands of the Spark side share: how Spark is started, and how its errors are told.

Spark takes seconds to start; so whatever can be wrong without it is checked before. Nothing here imports it.
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

from jetbus.cli.failures import Code, Failure, usage
from jetbus.cli.past import explained, written
from jetbus.cli.progress import bar

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEEDED = ("deltalake", "sqlglot")
"""Libraries besides pyspark that the Spark side is made with."""

master_option = click.option("--master", metavar="URL", help="Spark's master; local[*] unless given")
tables_option = click.option("--tables", required=True, metavar="DIR|URI", help="where the tables are, or are to be")


def _read_storage(_ctx: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise usage(f"--storage takes KEY=VALUE, such as AWS_REGION=eu-central-1, and not {text!r}")
        found[name] = value
    return found


storage_option = click.option(
    "--storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_read_storage,
    help="a setting of the object store, such as AWS_ENDPOINT_URL=...; repeatable; secrets better in the environment",
)


class UiPort(click.ParamType[str]):
    """A port, or ``off``."""

    name = "port"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        is_port = str(value).isascii() and str(value).isdigit() and PORT_MIN <= int(value) <= PORT_MAX
        if value != "off" and not is_port:
            raise usage(f"--ui takes a port from {PORT_MIN} to {PORT_MAX}, or off, and not {str(value)!r}")
        return str(value)


PORT_MIN, PORT_MAX = 1024, 65535
"""The ports that Spark takes."""
ui_option = click.option(
    "--ui",
    type=UiPort(),
    metavar="PORT|off",
    help="port of Spark's UI; 4040 or the next free one; on a cluster off unless given",
)
journals_option = click.option(
    "--journal",
    "-j",
    "journals",
    required=True,
    multiple=True,
    metavar="DIR|URL",
    help="folder, pattern or daemon; repeatable",
)


@contextmanager
def spark_explained() -> Iterator[None]:
    """Turn errors of the Spark side into failures with exit codes."""
    with explained():
        try:
            from jetbus.spark.errors import BadOption, JetSparkError, NotTables
        except ModuleNotFoundError as problem:
            if problem.name != "pyspark":
                raise
            raise Failure(str(problem)) from None
        try:
            yield
        except ModuleNotFoundError as problem:
            if problem.name not in _NEEDED:
                raise
            raise Failure(
                f"the Spark side needs {problem.name}; install it with: pip install 'jetbus[spark]'"
            ) from None
        except BadOption as problem:
            raise usage(str(problem)) from None
        except NotTables as problem:
            raise Failure(str(problem), Code.NOT_FOUND) from None
        except JetSparkError as problem:
            raise Failure(str(problem)) from None


def started(master: str | None, *, ui: str | None = "off") -> Any:
    """Start Spark, or take the session that runs; a bar shows that it takes a while.

    ``ui`` is the port of its UI; None lets Spark choose. The port may be taken, so the address is told on stderr.
    """
    from jetbus.spark.session import session, ui_address, ui_settings

    settings = {} if ui == "off" else ui_settings(master, None if ui is None else int(ui))
    with bar("starting Spark"), _hushed():
        spark = session(master, name="jet", **settings)
    from jetbus.spark.queries import tell_once

    tell_once()
    address = None if ui == "off" else ui_address(spark)
    if address is not None:
        print(f"Spark's UI is at {address}", file=sys.stderr, flush=True)
    return spark


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep from stderr what Java says of itself when it starts; it is told if it does not start, and with --debug."""
    if "--debug" in sys.argv:
        yield
        return
    with tempfile.TemporaryFile() as heard:
        stderr = os.dup(2)
        os.dup2(heard.fileno(), 2)
        try:
            yield
        except Exception as problem:
            from jetbus.spark.errors import JetSparkError

            if isinstance(problem, JetSparkError):
                raise
            heard.seek(0)
            said = heard.read().decode(errors="replace").strip().splitlines() or [str(problem)]
            raise Failure(f"Spark does not start: {said[-1]}; --debug shows all that it says") from problem
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def check_journals(journals: Sequence[str], **login: str) -> dict[str, str]:
    """The options of format jet that mean these journals; fails at once where there is none."""
    import jetbus.journal
    from jetbus.spark.options import read_options
    from jetbus.spark.pipeline import where
    from jetbus.spark.remote import connect

    found = {**where(journals), **login}
    if "url" not in found:
        jetbus.journal.open(*journals)
    for daemon in read_options(found).daemons if "url" in found else ():
        connect(daemon).close()
    return found


def rows_of(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a result, as records."""
    for batch in frame.toArrow().to_batches():
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """A value of a column as JSON can tell it."""
    if isinstance(value, datetime):
        return written(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None  # JSON has no such number
    return value if value is None or isinstance(value, bool | int | float | str | bytes) else str(value)
