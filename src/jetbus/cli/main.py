"""The command ``jet``: the table of all commands, and how a command ends.

A command is one row here and one module; the module is imported when the command is used.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, NoReturn

import click

import jetbus
from jetbus.cli.failures import Code, Failure, code_of, complain, near, sentence
from jetbus.cli.frame import SHARED
from jetbus.cli.output import prepare
from jetbus.cli.tools import TOOLS, run_tool
from jetbus.errors import JetError

COMPLETE = "_JET_COMPLETE"
"""The variable by which a shell asks for completions."""


class Row(NamedTuple):
    """One command: the section of the help it is listed in, where it lives, and what it does in a few words."""

    section: str
    where: str
    """A module of this package and, after a colon, the command in it."""
    help: str
    """At most 21 characters, so that two columns fit a terminal of 80."""


COMMANDS: dict[str, Row] = {
    "get": Row("use", "get:get", "values once"),
    "set": Row("use", "set:set_state", "set a state"),
    "watch": Row("use", "watch:watch", "what happens, live"),
    "call": Row("use", "call:call", "call a method"),
    "ls": Row("look", "ls:ls", "what is there"),
    "tree": Row("look", "ls:tree", "the same as a tree"),
    "top": Row("look", "top:top", "the biggest talkers"),
    "hz": Row("look", "rates:hz", "how often it changes"),
    "bw": Row("look", "rates:bw", "how many bytes"),
    "peers": Row("look", "peers:peers", "connections, how slow"),
    "kick": Row("look", "kick:kick", "close a connection"),
    "add": Row("own", "add:add", "own a state"),
    "method": Row("own", "method:method", "serve a method"),
    "at": Row("past", "at:at", "the tree back then"),
    "diff": Row("past", "at:diff", "what is different"),
    "history": Row("past", "history:history", "values over time"),
    "record": Row("past", "record:record", "a bus to a journal"),
    "replay": Row("past", "replay:replay", "a journal to a bus"),
    "journal": Row("past", "journal:journals", "look after journals"),
    "pipeline": Row("tables", "pipeline:pipeline", "journals into tables"),
    "tables": Row("tables", "tables:tables", "look after tables"),
    "sql": Row("tables", "sql:sql", "questions to tables"),
    "demo": Row("run", "demo:demo", "a bus to try all with"),
    "daemon": Row("run", "daemon:daemon", "run a daemon (jetd)"),
    "bridge": Row("run", "bridge:bridge", "mount another bus"),
    "bench": Row("run", "bench:bench", "load and figures"),
    "user": Row("admit", "user:user", "users and passwords"),
    "access": Row("admit", "access:access", "who may do what, why"),
    "context": Row("help", "context:context", "named buses"),
    "doctor": Row("help", "doctor:doctor", "look for trouble"),
    "completion": Row("help", "completion:completion", "for bash, zsh, fish"),
    "version": Row("help", "version:version", "of jet and daemon"),
}


class Jet(click.Group):
    """Finds commands in the table."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        row = COMMANDS.get(name)
        if row is None:
            return None
        module, _, attribute = row.where.partition(":")
        found: click.Command = getattr(importlib.import_module(f"jetbus.cli.{module}"), attribute)
        found.name = name
        found.short_help = row.help
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            meant = near(args[0], COMMANDS)
            hint = f"did you mean `jet {meant}`?" if meant else "`jet --help` lists the commands"
            raise Failure(f"there is no command {args[0]}; {hint}", Code.USAGE)
        return super().resolve_command(ctx, args)

    def format_help(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("Usage: jet [--url URL | --context NAME] COMMAND ...\n\n")
        for line in _columns():
            formatter.write(line + "\n")
        formatter.write(
            "\n`jet COMMAND --help` has options and examples. Which bus: --url, --context,\n"
            "JET_URL, JET_CONTEXT, the context in use, else jet://localhost:11122. Tables on\n"
            "a terminal, JSON lines in a pipe; --output takes table, json, jsonl, csv, value.\n"
        )


def _columns() -> list[str]:
    """All commands in two columns; a section is named where it begins and at the top of a column."""
    cells, before, half = [], "", (len(COMMANDS) + 1) // 2
    for number, (name, row) in enumerate(COMMANDS.items()):
        section = row.section if row.section != before or number == half else ""
        cells.append(f"{section:<7}{name:<11}{row.help}")
        before = row.section
    return [f"{left:<41}{right}".rstrip() for left, right in zip_longest(cells[:half], cells[half:], fillvalue="")]


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"jet {jetbus.__version__}")
        context.exit()


jet = Jet(
    "jet",
    params=[
        *SHARED,
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version),
    ],
    help="One command for the whole bus.",
    no_args_is_help=False,
    invoke_without_command=True,
    callback=lambda **_shared: _help_without_command(),
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _help_without_command() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - pathlib is not needed for that
    if name in TOOLS:
        words.insert(0, name)
    code = run(words)
    _leave(code)


def run(words: list[str]) -> int:
    """Run a command; gives its exit code after everything is said."""
    if words[:1] and words[0] in TOOLS:
        return run_tool(words[0], words[1:])
    debug = "--debug" in words
    try:
        return _run(words)
    except (KeyboardInterrupt, click.Abort):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # after the ^C that the terminal shows
        return Code.INTERRUPTED
    except BrokenPipeError:
        return Code.OK  # the reader has seen enough
    except Exception as problem:
        if debug:
            import traceback

            traceback.print_exc()
        return _explain(problem)


def _run(words: list[str]) -> int:
    prepare(sys.stdout)
    prepare(sys.stderr)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise Failure(f"{word!a} is not UTF-8; paths and values are", Code.USAGE) from None
    if os.environ.get(COMPLETE):
        jet.main(words, prog_name="jet", complete_var=COMPLETE)  # the shell asks for completions
    try:
        with jet.make_context("jet", words) as context:  # not jet.main, which has an end of its own for Ctrl-C
            outcome: Any = jet.invoke(context)
    except click.exceptions.Exit as end:
        outcome = end.exit_code
    sys.stdout.flush()
    return outcome if isinstance(outcome, int) else Code.OK


def _explain(problem: Exception) -> int:
    if isinstance(problem, Failure):
        complain(str(problem))
        return problem.code
    if isinstance(problem, click.ClickException):
        return _explain_usage(problem)
    if isinstance(problem, JetError):
        complain(sentence(problem))
        return code_of(problem)
    if isinstance(problem, OSError) and problem.strerror:
        complain(f"{problem.filename or 'output'}: {problem.strerror}; check where it is and who may use it")
        return Code.USAGE
    complain(f"{type(problem).__name__}: {problem}; this is a bug of jet, --debug shows where")
    return Code.REFUSED


def _explain_usage(problem: click.ClickException) -> int:
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        print(problem.format_message(), file=sys.stderr)
        return Code.USAGE
    context = getattr(problem, "ctx", None)
    command = context.command_path if context else "jet"
    text = " ".join(problem.format_message().split()).rstrip(".").replace(". Did you mean", "; did you mean")
    text = re.sub(r"\. \(Did you mean (.*)\?\)$", r"; did you mean \1?", text).replace("one of: ", "one of ")
    text = text[:1].lower() + text[1:]
    complain(text if text.endswith("?") else f"{text}; see `{command} --help`")
    return Code.USAGE


def _leave(code: int) -> NoReturn:
    """End; a pipe whose reader is gone must not complain once more."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)
