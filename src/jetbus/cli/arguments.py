"""Arguments of commands: values, durations and rules.

Values are JSON. A bare word is an error unless ``--string`` is given, so that a mistyped number never becomes text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from jetbus.cli.exit_codes import Code, Failure, escape, usage_error
from jetbus.errors import InvalidRule
from jetbus.json_types import Json
from jetbus.paths import BRIDGE_NOTE
from jetbus.rules import Rule, parse_rule
from jetbus.wire import jsonrpc


def _refuse_constant(name: str) -> None:
    # Python's parser accepts NaN and Infinity, which are not JSON; a daemon would refuse the message.
    raise ValueError(f"{name} is not a JSON number")


def read_value(text: str, *, string: bool = False, has_option: bool = True) -> Json:
    """Parse a value: JSON, or plain text with ``string``; ``has_option`` if the command has an option for that.

    >>> read_value('{"rpm": 7}'), read_value("on", string=True)
    ({'rpm': 7}, 'on')
    """
    if string:
        return text
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        jsonrpc.encode(value)  # refuses integers of more than 64 bits, which JSON parsers elsewhere would round
    except (ValueError, OverflowError, RecursionError, UnicodeError):
        explained = _explain_bad_json(text)
        raise usage_error(explained if has_option else explained.removesuffix(" or add --string")) from None
    return value


def _explain_bad_json(text: str) -> str:
    # A value may be a whole document, but a message is one line.
    short = text if len(text) <= 40 else text[:39] + "…"
    # Commands that take values let unknown options pass, because -5 is a value. So a mistyped option ends here.
    if re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", text):
        return f"there is no option {short}; --help lists the options"
    # Only a single word without quotes can be repeated in the advice as it is.
    if re.fullmatch(r"[^\s\"'{}\[\]]+", text):
        return f"{short} is not JSON; for text, write '\"{short}\"' or add --string"
    return f"{short} is not JSON; for text, write '\"text\"' or add --string"


def read_duration(text: str) -> float:
    """Parse a duration such as ``250ms``, ``2h``, ``7d`` or ``1h30m``; return seconds.

    >>> read_duration("250ms"), read_duration("1h30m")
    (0.25, 5400.0)
    """
    from jetbus.journal import BadInstant, instants  # imported late, since few commands take a duration

    try:
        return instants.read_duration(text)
    except BadInstant:
        raise usage_error(
            f"{text!r} is not a duration; write a number and a unit, such as 250ms, 10s, 2h or 7d"
        ) from None


def read_rules(texts: Sequence[str]) -> list[Rule]:
    """Parse rules; without any, return the rule that matches everything."""
    return [read_rule(text) for text in texts] or [Rule()]


def read_rule(text: str) -> Rule:
    """Parse one rule."""
    try:
        return parse_rule(text)
    except InvalidRule as problem:
        raise Failure(f"{problem}; `jet help rules` has the syntax", Code.USAGE) from None


def is_shown(path: str, rules: Sequence[str]) -> bool:
    """Return False for the note of a bridge that no rule asks for: its secrets belong on no screen by chance."""
    return BRIDGE_NOTE not in path.split("/") or any("$" in rule for rule in rules)


def get_exact_path(rule: Rule) -> str | None:
    """Return the path if the rule matches exactly one path, else None."""
    paths = rule.exact_paths
    # With a test of the value, an empty result would not mean that the path is missing.
    return paths[0] if paths is not None and len(paths) == 1 and not rule.value else None


def no_match_error(texts: Sequence[str]) -> Failure:
    """Return the error for rules that match nothing on the bus."""
    what = " or ".join(map(escape, texts))
    return Failure(f"nothing on the bus matches {what}; `jet ls` lists what there is", Code.NOT_FOUND)
