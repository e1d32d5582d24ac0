"""``jet alarms``: watch states for alarms, and be the operator of those that are raised."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import click

from jetbus.cli.arguments import read_rule
from jetbus.cli.command import DURATION, PATH, Example, Family, command
from jetbus.cli.exit_codes import Code, print_message, usage_error
from jetbus.cli.journals import open_source, since_option, until_option
from jetbus.cli.output import Output
from jetbus.cli.streams import Ending, Follower, open_peer, report_to_stderr, run_until_end, stop_on_sigterm
from jetbus.cli.streams import run as stream
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject

alarms = Family("alarms", help="Raise alarms while the bus runs; list, acknowledge and shelve them.")

ACTIVE_COLUMNS = ("alarm", "path", "state", "priority", "value", "message")
TRANSITION_COLUMNS = ("ts", "what", "alarm", "path", "value", "who", "note")
CHECK_COLUMNS = ("alarm", "live", "reason")
TARGET_COLUMNS = ("alarm", "path")

_prefix = click.option(
    "--prefix", default="alarms", metavar="P", help="where the alarms are published; default: alarms"
)


def _target(function: Any) -> Any:
    """Add the options that select alarms."""
    for option in reversed(
        (
            click.option("--alarm", metavar="NAME", help="alarms of this name"),
            click.option("--path", "paths", metavar="RULE", help="alarms at these paths"),
            click.option("--group", metavar="NAME", help="alarms of this group"),
            click.option("--priority", metavar="NAME", help="critical, high, medium or low"),
            click.option("--note", default="", metavar="TEXT", help="why; it is recorded"),
            click.option("--who", default="", metavar="NAME", help="your name; it is recorded"),
            _prefix,
        )
    ):
        function = option(function)
    return function


@command(
    name="check",
    examples=[
        Example("jet alarms check alarms.toml", "whether all conditions can be live, and why not"),
        Example("jet alarms check alarms.toml --output value", "the names of the alarms in the file"),
    ],
    bus=False,
)
@click.argument("file", metavar="FILE")
def check(form: str | None, file: str) -> int:
    """Print for each alarm of a TOML FILE whether it can be live; exits with 1 if one cannot.

    An alarm that cannot be live can still be evaluated by Spark: `jet pipeline backtest`, `jet pipeline run --alarms`.
    """
    from jetbus.alarms import read_alarms
    from jetbus.alarms.receivers import read_receivers
    from jetbus.alarms.signals import compile_alarms
    from jetbus.entries import BadEntry

    try:
        found = read_alarms(file)
    except BadEntry as problem:
        raise usage_error(str(problem)) from None
    code = Code.OK
    with Output(CHECK_COLUMNS, form, value="alarm") as out:
        for alarm in found:
            told: JsonObject = {"alarm": alarm.name, "live": True}
            try:
                read_receivers(file, [alarm])
                compile_alarms([alarm])
            except BadEntry as problem:
                told, code = {"alarm": alarm.name, "live": False, "reason": problem.problem}, Code.REFUSED
            out.put(told)
    return code


@command(
    name="run",
    examples=[
        Example("jet alarms run alarms.toml --prefix plant/alarms --for 1s", "watch the bus; here for a second"),
        Example("jet alarms run alarms.toml --prefix p2 --shelve-max 1h --for 1s", "nobody can silence one for longer"),
    ],
)
@click.argument("file", metavar="FILE")
@_prefix
@click.option("--queue", metavar="DIR", help="folder for notices that are not sent yet; default: in memory")
@click.option("--shelve-max", type=DURATION, default="8h", metavar="DURATION", help="longest silence; default: 8h")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="end after this time, such as 10s")
def run(
    bus: Target,
    form: str | None,
    file: str,
    prefix: str,
    queue: str | None,
    shelve_max: float,
    for_s: float | None,
) -> None:
    """Raise the alarms of a TOML FILE as values come, until Ctrl-C or SIGTERM, and print each transition.

    The daemon must keep a journal: hold times end by its clock, and after a restart it says which alarms were raised,
    acknowledged and shelved. Conditions that cannot be live are refused; `jet alarms check` names them.
    """
    from jetbus.alarms.live import run_alarms
    from jetbus.entries import BadEntry

    report_to_stderr()
    with Output(TRANSITION_COLUMNS, form, stream=True, value="what") as out, stop_on_sigterm() as stop:
        timer = None if for_s is None else threading.Timer(for_s, stop.set)

        def begin() -> None:
            if sys.stderr.isatty():
                print_message(f"watching {file} at {bus.shown_url} until Ctrl-C")
            if timer is not None and not timer.is_alive() and not stop.is_set():
                timer.start()

        try:
            run_alarms(
                bus.url,
                file,
                prefix=prefix,
                wait=bus.wait,
                stop=stop,
                shelve_s_max=shelve_max,
                queue=queue,
                on_transition=lambda told: out.put(_show_transition(told)),
                on_ready=begin,
                **bus.get_login(),
            )
        except BadEntry as problem:
            hint = "" if problem.name is None else f"; `jet alarms check {file}` lists all that cannot be live"
            raise usage_error(f"{problem}{hint}") from None
        finally:
            if timer is not None:
                timer.cancel()


def _show_transition(told: JsonObject) -> JsonObject:
    """Return a transition as a record; an act has its time in place of that of an event."""
    return {"ts": told["at"], **{name: value for name, value in told.items() if name != "at"}}


@command(
    name="ls",
    examples=[
        Example("jet alarms ls", "all alarms that are not normal, the most urgent first"),
        Example("jet alarms ls --priority high --output jsonl", "those of one priority, for a script"),
    ],
)
@click.option("--priority", metavar="NAME", help="only those of a priority")
@click.option("--group", metavar="NAME", help="only those of a group")
@_prefix
def ls(bus: Target, form: str | None, priority: str | None, group: str | None, prefix: str) -> None:
    """Print the alarms that are not normal, the most urgent first."""
    from jetbus.alarms import PRIORITIES

    with bus.connect() as peer:
        found = peer.get_all(read_rule(f"{prefix}/active/**"))
    rows = [_to_record(prefix, path, told) for path, told in found.items() if isinstance(told, dict)]
    rows.sort(key=lambda row: (PRIORITIES.index(str(row["priority"])), str(row["since"])))
    with Output(ACTIVE_COLUMNS, form, value="path") as out:
        for row in rows:
            if priority in (None, row["priority"]) and group in (None, row.get("group")):
                out.put(row)


def _to_record(prefix: str, path: str, told: JsonObject) -> JsonObject:
    name, _, where = path.removeprefix(f"{prefix}/active/").partition("/")
    return {"alarm": name, "path": where, **told}


@command(
    name="watch",
    examples=[
        Example("jet alarms watch --for 1s", "the newest transition, and then each as it comes"),
        Example("jet alarms watch --for 1s --output jsonl", "the same for a script"),
    ],
    stream=True,
)
@_prefix
def watch(bus: Target, form: str | None, ending: Ending, prefix: str) -> int:
    """Print the newest transition of an alarm, and then each one as it comes."""
    with Output(TRANSITION_COLUMNS, form, stream=True, value="what") as out:
        code: int = stream(_watch(bus, prefix, out, ending))
    return code


async def _watch(bus: Target, prefix: str, out: Output, ending: Ending) -> int:
    wanted = read_rule(f"{prefix}/newest")
    async with open_peer(bus) as peer:
        following = Follower(peer, [wanted], every=True)

        async def show() -> None:
            there = await following.ready()
            while True:
                for event in there:
                    if event.kind != "remove" and isinstance(event.value, dict):
                        out.put(_show_transition(event.value))
                        if ending.record_event(event):
                            return
                there = [await following.next()]

        return await run_until_end(show(), ending, quits=True)


def _act(bus: Target, form: str | None, prefix: str, method: str, **params: Any) -> None:
    """Call a method of the alarms and print those that it changed."""
    given = {name: value for name, value in params.items() if value not in (None, "")}
    given["path"] = given.pop("paths", None)
    if given["path"] is None:
        del given["path"]
    with bus.connect() as peer:
        changed = peer.call(f"{prefix}/{method}", given)
    with Output(TARGET_COLUMNS, form, value="path") as out:
        out.put_all(changed)


@command(
    name="ack",
    examples=[
        Example("jet alarms ack --alarm hot --note 'valve closed'", "all alarms of a name"),
        Example("jet alarms ack --path 'plant/tank/**'", "all alarms below a path"),
    ],
)
@_target
def ack(bus: Target, form: str | None, prefix: str, **target: Any) -> None:
    """Acknowledge the alarms that fit all options, and print those that this changed."""
    _act(bus, form, prefix, "ack", **target)


@command(
    name="shelve",
    examples=[
        Example("jet alarms shelve 30 --alarm hot --note 'being repaired'", "silence for 30 minutes"),
        Example("jet alarms shelve 60 --path 'plant/tank/**'", "all alarms below a path for an hour"),
    ],
)
@click.argument("minutes", type=float, metavar="MINUTES")
@_target
def shelve(bus: Target, form: str | None, prefix: str, minutes: float, **target: Any) -> None:
    """Silence the alarms that fit all options for some MINUTES; afterwards those that are raised are shown again."""
    _act(bus, form, prefix, "shelve", minutes=minutes, **target)


@command(
    name="unshelve",
    examples=[
        Example("jet alarms unshelve --alarm hot", "end the silence now"),
        Example("jet alarms unshelve --priority high", "of all alarms of a priority"),
    ],
)
@_target
def unshelve(bus: Target, form: str | None, prefix: str, **target: Any) -> None:
    """End the silence of the alarms that fit all options."""
    _act(bus, form, prefix, "unshelve", **target)


@command(
    name="history",
    examples=[
        Example("jet alarms history --since -1h", "all transitions of the last hour"),
        Example("jet alarms history --alarm hot --output csv", "those of one alarm, for a spreadsheet"),
    ],
    instants=True,
)
@click.option("--alarm", metavar="NAME", help="only this alarm")
@click.option("--path", "where", type=PATH, metavar="RULE", help="only alarms at these paths")
@since_option
@until_option
@_prefix
def history(
    bus: Target,
    form: str | None,
    alarm: str | None,
    where: str | None,
    since: str | None,
    until: str | None,
    prefix: str,
) -> None:
    """Print the recorded transitions of alarms, with user and reason of each acknowledgement."""
    wanted = None if where is None else read_rule(where)
    with Output(TRANSITION_COLUMNS, form, value="what") as out:
        for told in _read_transitions(bus, prefix, since, until):
            if alarm in (None, told["alarm"]) and (wanted is None or wanted.matches_path(str(told["path"]))):
                out.put(_show_transition(told))


def _read_transitions(bus: Target, prefix: str, since: str | None, until: str | None) -> Iterator[JsonObject]:
    """Yield the recorded transitions of a range of time, oldest first."""
    with open_source(bus, None, since, until) as source:
        for row in source.history(f"{prefix}/newest", source.pin(since, until)):
            if row["event"] != "remove" and row["value"]:
                told: JsonObject = json.loads(row["value"])
                yield told


for _one in (run, check, ls, watch, ack, shelve, unshelve, history):
    alarms.add_command(_one)
