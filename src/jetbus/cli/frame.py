"""What every command has in common: the options for the bus, the output and the end of a stream, and examples.

    @command(examples=[Example("jet get plant/pump/speed", "one value")])
    @click.argument("rules", nargs=-1)
    def get(bus: Bus, form: str | None, rules: tuple[str, ...]) -> None: ...

A command gets ``bus`` and ``form`` (and, with ``stream=True``, ``ending``) besides its own parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from jetbus.cli import buses
from jetbus.cli.output import FORMATS
from jetbus.cli.values import read_duration

MINUS = "\N{MINUS SIGN}"
"""Stands for the dash of ``-2h`` while options are told from arguments."""
_AGO = re.compile(r"-\d[\d.a-z]*")


class Example(NamedTuple):
    """A command line that a test runs, and what it is for."""

    line: str
    purpose: str


class Duration(click.ParamType[float]):
    """250ms, 10s, 2h, 7d."""

    name = "duration"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        return value if isinstance(value, float) else read_duration(str(value))


class LivePath(click.ParamType[str]):
    """A path, or a rule, that the shell can complete from what is on the bus."""

    name = "path"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        from jetbus.cli.completing import live_paths

        return list(live_paths(_given(ctx), incomplete))


class ContextName(click.ParamType[str]):
    """The name of a context, which the shell can complete."""

    name = "name"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        from jetbus.cli.completing import contexts

        return list(contexts(incomplete))


DURATION, PATH, CONTEXT = Duration(), LivePath(), ContextName()

_BUS = (
    click.Option(["--url"], metavar="URL", help="the daemon: jet://, jets://, ws://, wss://, unix:// or jetb://"),
    click.Option(["--context", "-c"], type=CONTEXT, metavar="NAME", help="a bus by name, see `jet context`"),
    click.Option(["--user"], metavar="NAME", help="log in as this user"),
    click.Option(["--password-file"], metavar="FILE", help="the password's file, - for stdin; else it is asked for"),
    click.Option(["--ca"], metavar="FILE", help="PEM certificates to trust with jets:// and wss://"),
)
_OUTPUT = (
    click.Option(
        ["--output", "-o", "form"], type=click.Choice(FORMATS), help="default: table on a terminal, else jsonl"
    ),
)
_STREAM = (
    click.Option(["--count", "-n"], type=click.IntRange(1), metavar="N", help="end after so many"),
    click.Option(["--for", "for_s"], type=DURATION, metavar="DURATION", help="end after this time, such as 10s"),
    click.Option(["--until"], metavar="RULE", help='end as soon as this holds, such as "value>7"'),
)
_DEBUG = click.Option(["--debug"], is_flag=True, expose_value=False, help="show a traceback when something fails")
SHARED = (*_BUS, *_OUTPUT, _DEBUG)
"""The options that may stand before the command as well as after it."""


class Command(click.Command):
    """A command of ``jet``: its help ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[Example] = (), instants: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples
        self._instants = instants

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._instants:  # -2h is an instant and no option
            args = [MINUS + word[1:] if _AGO.fullmatch(word) else word for word in args]
        return super().parse_args(ctx, args)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {example.line}\n      {example.purpose}\n")


class Family(click.Group):
    """Commands under one noun, such as ``jet context add``."""

    command_class = Command


def command(
    *,
    examples: Sequence[Example],
    bus: bool = True,
    stream: bool = False,
    instants: bool = False,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command."""

    def make(function: Callable[..., Any]) -> Command:
        def run(**given: Any) -> Any:
            context = click.get_current_context()
            if bus:
                for option in _BUS:
                    del given[option.name or ""]
                given["bus"] = buses.find(**_given(context))
            given["form"] = given["form"] or context.find_root().params.get("form")
            if stream:
                from jetbus.cli.streams import Ending

                given["ending"] = Ending(given.pop("count"), given.pop("for_s"), given.pop("until"))
            return function(**given)

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


def _given(context: click.Context) -> dict[str, Any]:
    """The options for the bus, given after the command or before it."""
    root, here = context.find_root().params, context.params
    found = {name: here.get(name) or root.get(name) for name in (option.name or "" for option in _BUS)}
    if here.get("url") or here.get("context"):  # a bus named after the command replaces one named before it
        found["url"], found["context"] = here.get("url"), here.get("context")
    return found


def named_bus(text: str, **login: str | None) -> buses.Bus:
    """Another bus, by its URL or the name of its context, with the login that the command line gives for it.

    Without ``login`` that is the one of --user; the login of the context in use is for its own bus only.
    """
    found = _given(click.get_current_context())
    where = {"url": text, "context": None} if "://" in text else {"url": None, "context": text}
    return buses.find(**{**found, **where, **login})


def bus_is_named() -> bool:
    """Whether the command line itself says which bus."""
    found = _given(click.get_current_context())
    return bool(found["url"] or found["context"])
