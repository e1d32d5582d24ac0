"""``jet daemon``: run jetd."""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext, redirect_stdout

import click

from jetbus.cli.command import Example, command
from jetbus.cli.output import Output


class Ready(io.TextIOBase):
    """Stdout of a daemon, which turns its one line, ``ready tcp=... ws=...``, into a record."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._line = ""
        self._outside = sys.stdout

    def write(self, text: str) -> int:
        self._line += text
        if self._line.endswith("\n"):
            where = dict(word.split("=", 1) for word in self._line.split()[1:])
            # Stdout is this object at the moment.
            with redirect_stdout(self._outside):
                Output(list(where), self._form, value=next(iter(where), "")).put_all([where])
            self._line = ""
        return len(text)


@command(
    examples=[
        Example("jet daemon --tcp localhost:0", "on a free port, which it prints"),
        Example("jet daemon --users users.json --tcp localhost:0", "with users and passwords"),
    ],
    bus=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
def daemon(form: str | None, settings: tuple[str, ...]) -> None:
    """Run a daemon until Ctrl-C. SETTINGS are those of jetd; see `jetd --help`.

    When the daemon is ready it prints one line with its addresses, as text unless --output is given.
    """
    from jetbus.daemon.main import main

    # Options of jetd pass through click, and --debug with them, which is an option of jet.
    words = [word for word in settings if word != "--debug"]
    with nullcontext() if form is None else redirect_stdout(Ready(form)):
        main(words)
