"""The decorator ``command``, which adds the shared options to a function and makes it a command of ``jet``.

    @command(examples=[Example("jet get plant/pump/speed", "one value")])
    @click.argument("rules", nargs=-1)
    def get(bus: Target, form: str | None, rules: tuple[str, ...]) -> None: ...

Besides its own parameters the function receives ``bus`` and ``form``; with ``stream=True`` also ``ending``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jetbus.cli import target
from jetbus.cli.arguments import read_duration
from jetbus.cli.exit_codes import usage_error
from jetbus.cli.output import FORMATS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MINUS = "\N{MINUS SIGN}"
"""Replaces the dash of ``-2h`` while click parses the command line, so that it is not mistaken for an option."""
# -2h and -1.5d, but not -n: options start with a letter.
_AGO = re.compile(r"-\d[\d.a-z]*")


class Example(NamedTuple):
    """Command line for the help, with its purpose; a test runs every one of them."""

    line: str
    purpose: str


class Duration(click.ParamType[float]):
    """Parameter type for durations such as 250ms, 10s, 2h or 7d."""

    name = "duration"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        # click converts defaults as well, which are given in seconds.
        return value if isinstance(value, float) else read_duration(str(value))


class Format(click.Choice[str]):
    """Parameter type for an output format; says how to write a file if it is given one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "." in str(value):
            has_to = ctx is not None and any("--to" in one.opts for one in ctx.command.params)
            way = f"--to {value}" if has_to else f"> {value}"
            raise usage_error(f"--output takes a format such as jsonl or csv, not a file; write to one with {way}")
        return super().convert(value, param, ctx)


class LivePath(click.ParamType[str]):
    """Parameter type for a path or rule, completed by the shell from the paths on the bus."""

    name = "path"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        # Not checked here: whether it is a path, a prefix or a rule depends on the command.
        return str(value)

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # That module imports this one, so it cannot be imported at the head.
        from jetbus.cli.commands.completion import complete_paths

        return list(complete_paths(collect_bus_options(ctx), incomplete))


class ContextName(click.ParamType[str]):
    """Parameter type for the name of a context, completed by the shell."""

    name = "name"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from jetbus.cli.commands.completion import complete_contexts

        return list(complete_contexts(incomplete))


DURATION, PATH, CONTEXT = Duration(), LivePath(), ContextName()

_BUS = (
    click.Option(
        ["--url"], metavar="URL", help="address of the daemon: jet://, jets://, ws://, wss://, unix:// or jetb://"
    ),
    click.Option(["--context", "-c"], type=CONTEXT, metavar="NAME", help="named bus to use; see `jet context`"),
    click.Option(["--user"], metavar="NAME", help="log in as this user"),
    click.Option(["--password-file"], metavar="FILE", help="read the password from FILE, or from stdin if -"),
    click.Option(["--ca"], metavar="FILE", help="PEM file of certificates to trust for jets:// and wss://"),
    click.Option(["--wait"], is_flag=True, help="wait for a daemon that does not run yet"),
)
_OUTPUT = (
    click.Option(
        ["--output", "-o", "form"],
        type=Format(FORMATS),
        help="output format; default: table on a terminal, jsonl in a pipe",
    ),
)
_STREAM = (
    click.Option(["--count", "-n"], type=click.IntRange(1), metavar="N", help="stop after N records"),
    click.Option(["--for", "for_s"], type=DURATION, metavar="DURATION", help="stop after this time, such as 10s"),
    click.Option(["--until"], metavar="RULE", help='stop as soon as this rule matches, such as "value>7"'),
)
# ``main`` looks for it among the words, since a traceback is also wanted if the words cannot be parsed.
_DEBUG = click.Option(["--debug"], is_flag=True, expose_value=False, help="print a traceback if the command fails")
SHARED = (*_BUS, *_OUTPUT, _DEBUG)
"""Options accepted both before and after the name of the command."""


class Command(click.Command):
    """Command of ``jet`` with examples at the end of its help."""

    def __init__(self, *args: Any, examples: Sequence[Example] = (), instants: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples
        self._instants = instants

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._instants:  # -2h is an instant, not an option
            args = [MINUS + word[1:] if _AGO.fullmatch(word) else word for word in args]
        return super().parse_args(ctx, args)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                # Written as they are, since click would wrap the lines, and people paste them.
                for example in self.examples:
                    formatter.write(f"  {example.line}\n      {example.purpose}\n")


class Family(click.Group):
    """Group of commands under one noun, such as ``jet context add``."""

    command_class = Command


def command(
    *,
    examples: Sequence[Example],
    bus: bool = True,
    stream: bool = False,
    instants: bool = False,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Command]:
    """Turn a function into a command with the shared options."""

    def make(function: Callable[..., Any]) -> Command:
        def run(**params: Any) -> Any:
            context = click.get_current_context()
            if bus:
                # The function gets the bus instead of the options that select it.
                for option in _BUS:
                    del params[option.name or ""]
                params["bus"] = target.find_bus(**collect_bus_options(context))
            # Shared options may stand before the name of the command, too; those behind it win.
            params["form"] = params["form"] or context.find_root().params.get("form")
            if stream:
                from jetbus.cli.streams import Ending

                params["ending"] = Ending(params.pop("count"), params.pop("for_s"), params.pop("until"))
            return function(**params)

        # Decorators are applied from the innermost outwards, and so click collects them.
        own = list(reversed(getattr(function, "__click_params__", [])))
        shared = [*(_STREAM if stream else ()), *_OUTPUT, *(_BUS if bus else ()), _DEBUG]
        name = settings.pop("name", None) or function.__name__.strip("_").replace("_", "-")
        return Command(
            name,
            callback=run,
            params=[*own, *shared],
            help=function.__doc__,
            examples=examples,
            instants=instants,
            **settings,
        )

    return make


def collect_bus_options(context: click.Context) -> dict[str, Any]:
    """Return the options that select the bus, whether they stand before or after the command."""
    root, here = context.find_root().params, context.params
    found = {name: here.get(name) or root.get(name) for name in (option.name or "" for option in _BUS)}
    if here.get("url") or here.get("context"):  # options after the command override those before it
        found["url"], found["context"] = here.get("url"), here.get("context")
    return found


def find_named_bus(text: str, **login: str | None) -> target.Target:
    """Return a second bus of a command, given by its URL or context.

    ``login`` overrides --user and --password-file. The login of the current context is never sent to another bus.
    """
    found = collect_bus_options(click.get_current_context())
    # Both are set, so that --url or --context of the first bus does not select the second one.
    where = {"url": text, "context": None} if "://" in text else {"url": None, "context": text}
    return target.find_bus(**{**found, **where, **login})


def is_bus_named() -> bool:
    """Return True if the command line itself selects a bus."""
    found = collect_bus_options(click.get_current_context())
    return bool(found["url"] or found["context"])
