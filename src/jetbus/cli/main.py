"""Entry point of ``jet``: the table of commands, and how their failures become messages and exit codes.

A command is one row here and one module in ``commands``, which is imported when the command is used.
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
from jetbus.cli.command import SHARED
from jetbus.cli.exit_codes import Code, Failure, describe_error, find_similar, get_exit_code, print_message
from jetbus.cli.output import configure_stream
from jetbus.cli.tools import TOOLS, run_tool
from jetbus.errors import JetError
from jetbus.programs import describe_missing

COMPLETE = "_JET_COMPLETE"
"""Environment variable by which a shell requests completions."""


class Row(NamedTuple):
    """One command: its section of the help, its module, and a summary."""

    section: str
    where: str
    """Module in ``commands`` and, after a colon, the name of the command in it."""
    help: str
    """At most 21 characters, so that two columns fit a terminal of 80."""


COMMANDS: dict[str, Row] = {
    "get": Row("use", "get:get", "print values"),
    "set": Row("use", "set:set_state", "set a state"),
    "watch": Row("use", "watch:watch", "print changes, live"),
    "call": Row("use", "call:call", "call a method"),
    "ls": Row("look", "ls:ls", "list the bus"),
    "describe": Row("look", "describe:describe", "all about a state"),
    "tree": Row("look", "tree:tree", "draw it as a tree"),
    "alarms": Row("look", "alarms:alarms", "run, list, ack alarms"),
    "top": Row("look", "top:top", "busiest paths, live"),
    "hz": Row("look", "rates:hz", "rate of changes"),
    "bw": Row("look", "rates:bw", "bandwidth of changes"),
    "peers": Row("look", "peers:peers", "list connections"),
    "find": Row("look", "find:find", "daemons nearby"),
    "radar": Row("look", "radar:radar", "open it in a browser"),
    "kick": Row("look", "kick:kick", "close a connection"),
    "add": Row("own", "add:add", "own a state"),
    "method": Row("own", "method:method", "serve a method"),
    "at": Row("past", "at:at", "the tree at a time"),
    "diff": Row("past", "diff:diff", "compare two trees"),
    "history": Row("past", "history:history", "values over time"),
    "restore": Row("past", "restore:restore", "set old values again"),
    "record": Row("past", "record:record", "record a bus"),
    "replay": Row("past", "replay:replay", "play a recording"),
    "journal": Row("past", "journal:journals", "manage journals"),
    "pipeline": Row("tables", "pipeline:pipeline", "make tables by Spark"),
    "tables": Row("tables", "tables:tables", "manage tables"),
    "sql": Row("tables", "sql:sql", "query tables"),
    "demo": Row("run", "demo:demo", "try a simulated plant"),
    "daemon": Row("run", "daemon:daemon", "run a daemon (jetd)"),
    "bridge": Row("run", "bridge:bridge", "mount another bus"),
    "bench": Row("run", "bench:bench", "measure a daemon"),
    "user": Row("admit", "user:user", "users and passwords"),
    "access": Row("admit", "access:access", "check permissions"),
    "help": Row("help", "help:show_help", "explain words"),
    "context": Row("help", "context:context", "named buses"),
    "doctor": Row("help", "doctor:doctor", "diagnose problems"),
    "completion": Row("help", "completion:completion", "for bash, zsh, fish"),
    "version": Row("help", "version:version", "of jet and daemon"),
}


class Jet(click.Group):
    """Group that imports commands from the table when they are used."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        row = COMMANDS.get(name)
        if row is None:
            return None
        module, _, attribute = row.where.partition(":")
        # Only the module of this command: importing all of them would take longer than most commands.
        found: click.Command = getattr(importlib.import_module(f"jetbus.cli.commands.{module}"), attribute)
        # A function may be named differently, such as set_state, to leave Python's own names alone.
        found.name = name
        found.short_help = row.help
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click would print its usage as well, but a message of jet is one line.
        if args and self.get_command(ctx, args[0]) is None:
            similar = find_similar(args[0], COMMANDS)
            hint = f"did you mean `jet {similar}`?" if similar else "`jet --help` lists the commands"
            raise Failure(f"there is no command {args[0]}; {hint}", Code.USAGE)
        return super().resolve_command(ctx, args)

    def format_help(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Made from the table: click would import all commands to list them.
        formatter.write("Usage: jet [--url URL | --context NAME] COMMAND ...\n\n")
        for line in _list_commands():
            formatter.write(line + "\n")
        formatter.write("\n`jet COMMAND --help` has options and examples; `jet help WORD` explains a word.\n")


def _list_commands() -> list[str]:
    """Return the lines of the help: all commands in two columns, under the names of their sections."""
    cells, before, half = [], "", (len(COMMANDS) + 1) // 2
    for number, (name, row) in enumerate(COMMANDS.items()):
        # The right column may start within a section; then the name of the section is repeated at its top.
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
        # Also accepted before the name of the command, where ``collect_bus_options`` finds them.
        *SHARED,
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version),
    ],
    help="Use, inspect and record a Jet bus.",
    # `jet` alone prints the help and succeeds; click would take it for an error.
    no_args_is_help=False,
    invoke_without_command=True,
    callback=lambda **_shared: _print_help(),
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_help() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - pathlib is not needed for that
    # The scripts jetset, jetget and so on run this program under their own names; see ``tools``.
    if name in TOOLS:
        words.insert(0, name)
    code = run(words)
    _exit(code)


def run(words: list[str]) -> int:
    """Run a command, print its failure if any, and return its exit code."""
    if words[:1] and words[0] in TOOLS:
        return run_tool(words[0], words[1:])
    # Before the words are parsed, since parsing may fail.
    debug = "--debug" in words
    try:
        return _run(words)
    except (KeyboardInterrupt, click.Abort):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # end the line on which the terminal shows ^C
        return Code.INTERRUPTED
    except BrokenPipeError:
        return Code.OK  # the reader closed the pipe, as `head` does
    except Exception as problem:
        if debug:
            import traceback

            traceback.print_exc()
        return _report(problem)


def _run(words: list[str]) -> int:
    configure_stream(sys.stdout)
    configure_stream(sys.stderr)
    for word in words:
        try:
            # Bytes that are not UTF-8 arrive as surrogates, which no message can contain.
            word.encode()
        except UnicodeEncodeError:
            raise Failure(f"{word!a} is not UTF-8; paths and values must be", Code.USAGE) from None
    if os.environ.get(COMPLETE):
        jet.main(words, prog_name="jet", complete_var=COMPLETE)  # requested by the shell
    try:
        with jet.make_context("jet", words) as context:  # not jet.main, which handles Ctrl-C in its own way
            outcome: Any = jet.invoke(context)
    except click.exceptions.Exit as end:
        outcome = end.exit_code
    sys.stdout.flush()
    return outcome if isinstance(outcome, int) else Code.OK


def _report(problem: Exception) -> int:
    if isinstance(problem, Failure):
        print_message(str(problem))
        return problem.code
    if isinstance(problem, click.ClickException):
        return _report_usage(problem)
    if isinstance(problem, JetError):
        print_message(describe_error(problem))
        return get_exit_code(problem)
    if isinstance(problem, ModuleNotFoundError) and (text := describe_missing(problem)):
        print_message(text)
        return Code.USAGE
    if isinstance(problem, OSError) and problem.strerror:
        print_message(f"{problem.filename or 'output'}: {problem.strerror}; check the path and its permissions")
        return Code.USAGE
    print_message(f"{type(problem).__name__}: {problem}; this is a bug in jet, --debug shows where")
    return Code.REFUSED


def _report_usage(problem: click.ClickException) -> int:
    # The name of a family alone, such as `jet user`: its help is the message.
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        print(problem.format_message(), file=sys.stderr)
        return Code.USAGE
    context = getattr(problem, "ctx", None)
    command = context.command_path if context else "jet"
    # click writes sentences with capitals and full stops; all other messages of jet are one line without.
    text = " ".join(problem.format_message().split()).rstrip(".").replace(". Did you mean", "; did you mean")
    text = re.sub(r"\. \(Did you mean (.*)\?\)$", r"; did you mean \1?", text).replace("one of: ", "one of ")
    text = text[:1].lower() + text[1:]
    print_message(text if text.endswith("?") else f"{text}; see `{command} --help`")
    return Code.USAGE


def _exit(code: int) -> NoReturn:
    """Exit. Stdout is replaced if its reader is gone, so that Python does not report the broken pipe again."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)
