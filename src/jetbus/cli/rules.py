"""Rules as arguments of commands."""

from __future__ import annotations

from collections.abc import Sequence

from jetbus.cli.failures import Code, Failure, printable
from jetbus.errors import InvalidRule
from jetbus.rules import Rule, parse_rule


def read_rules(texts: Sequence[str]) -> list[Rule]:
    """The rules of a command line; none is everything."""
    return [read_one(text) for text in texts] or [Rule()]


def read_one(text: str) -> Rule:
    """One rule."""
    try:
        return parse_rule(text)
    except InvalidRule as problem:
        raise Failure(f"{problem}; docs/rules.md has the language of rules", Code.USAGE) from None


def exact_path(rule: Rule) -> str | None:
    """The path of a rule that is about one path only."""
    paths = rule.exact_paths
    return paths[0] if paths is not None and len(paths) == 1 and not rule.value else None


def nothing_matches(texts: Sequence[str]) -> Failure:
    """Nothing on the bus is what the rules are about."""
    what = " or ".join(map(printable, texts))
    return Failure(f"nothing on the bus matches {what}; `jet ls` shows what is there", Code.NOT_FOUND)
