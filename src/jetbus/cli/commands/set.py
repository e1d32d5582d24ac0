"""``jet set``: set a state, or with ``--all`` every state that matches a rule."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from jetbus.cli.arguments import no_match_error, read_rule, read_value
from jetbus.cli.command import DURATION, PATH, Example, command
from jetbus.cli.element_schemas import StateValue, explain_mismatch
from jetbus.cli.exit_codes import Code, Failure, path_not_found, print_message, usage_error
from jetbus.cli.output import Output
from jetbus.cli.target import Target
from jetbus.errors import ConnectionLost, Invalid, JetError, NotAllowed, NotFound, NotState, ReadOnly, Refused
from jetbus.json_types import Json, JsonObject
from jetbus.peer.restore import describe_outcome
from jetbus.rules import rule as make_rule
from jetbus.schema import read_schema

if TYPE_CHECKING:
    from jetbus.peer.simple import SimplePeer


@command(
    examples=[
        Example("jet set plant/pump/speed 1200", "set a number; values are JSON"),
        Example("jet set 'plant/*/speed' 900 --all", "set all speeds of the plant"),
    ],
    context_settings={"ignore_unknown_options": True},
)
@click.argument("path", type=PATH)
@click.argument("value", type=StateValue())
@click.option("--string", "-s", is_flag=True, help="take VALUE as text instead of JSON")
@click.option("--all", "by_rule", is_flag=True, help="take PATH as a rule and set every state that matches it")
@click.option("--timeout", "timeout_s", type=DURATION, metavar="DURATION", help="time limit for each owner")
@click.option("--no-reply", is_flag=True, help="send it without waiting for an answer; a refusal is not reported")
def set_state(
    bus: Target,
    form: str | None,
    path: str,
    value: str,
    string: bool,
    by_rule: bool,
    timeout_s: float | None,
    no_reply: bool,
) -> int:
    """Set the state at PATH to VALUE, and wait for the response of its owner.

    VALUE is JSON; - reads it from stdin, and --string takes it as text without quotes. If the value is refused and does
    not fit the schema of the state, the message says what would. If the owner adapts the value, the adapted value is
    printed. With --all every state that matches the rule PATH is set, and the outcome of each is printed. If one is
    refused, the others are set all the same, and the exit code is 1.
    """
    requested = read_value(sys.stdin.read().strip() if value == "-" else value, string=string)
    if no_reply:
        if by_rule or timeout_s is not None:
            raise usage_error("--no-reply waits for nobody; leave out --all and --timeout")
        with bus.connect() as peer:
            peer.set_unanswered(path, requested)
        return Code.OK
    if by_rule:
        return _set_all(bus, form, path, requested, timeout_s)
    _set_one(bus, form, path, requested, timeout_s)
    return Code.OK


def _set_one(bus: Target, form: str | None, path: str, requested: Json, timeout_s: float | None) -> None:
    record: JsonObject = {"path": path, "value": requested}
    with bus.connect() as peer:
        try:
            result = peer.set(path, requested, timeout_s)
        except NotFound:
            # A path may have stars in its name, so this is a question only if the path does not exist.
            if "*" in path and peer.get_all(read_rule(path)):
                raise Failure(
                    f"{path} is a rule, and set takes one path; --all sets every state that matches it", Code.USAGE
                ) from None
            raise path_not_found(path, peer.paths()) from None
        except (NotAllowed, ReadOnly, NotState):
            raise  # whatever the value, it would be refused
        except (Refused, Invalid) as refusal:
            # The owner may only say "invalid value"; its schema says which values are valid.
            schema = read_schema(peer.describe(make_rule(equals=path)).get(path, {}).get("schema"))
            raise explain_mismatch(path, schema, requested) or refusal from None
        record["value"] = result.value
        # Other daemons say only that the owner took another value; which one is on the bus.
        if result.adapted and not peer.is_jetbus:
            record["value"] = peer.get_all(make_rule(equals=path)).get(path, requested)
    if result.adapted:
        record["warning"] = result.warning or "the owner adapted the value"
        print_message(f"{path}: {record['warning']}")
    with Output(("path", "value"), form) as out:
        out.put(record)


def _set_all(bus: Target, form: str | None, rule: str, requested: Json, timeout_s: float | None) -> int:
    """Set every state that matches a rule, one after the other."""
    wanted = read_rule(rule)
    is_refused = False
    with bus.connect() as peer:
        paths = list(peer.get_all(wanted))
        if not paths:
            raise no_match_error([rule])
        with Output(("path", "value", "outcome"), form) as out:
            for path in paths:
                value, outcome = set_and_describe(peer, path, requested, timeout_s)
                is_refused |= outcome.startswith("refused")
                out.put({"path": path, "value": value, "outcome": outcome})
    return Code.REFUSED if is_refused else Code.OK


def set_and_describe(peer: SimplePeer, path: str, value: Json, timeout_s: float | None) -> tuple[Json, str]:
    """Set one of several states; return its value then, or the refused one, and a few words about the outcome.

    A lost connection ends the command.
    """
    try:
        result = peer.set(path, value, timeout_s)
    except ConnectionLost:
        raise
    except JetError as refusal:
        return value, describe_outcome(refusal)
    return result.value, describe_outcome(result)
