"""Search: rules are rules, and free text is ranked."""

from __future__ import annotations

import pytest

from jetbus.errors import InvalidRule
from jetbus.radar.search import find_paths

ROWS = [
    ("plant/pump/speed", 1200, False),
    ("plant/pumphouse/temp", 20.5, False),
    ("plant/old-pump/speed", 3, False),
    ("plant/impumpable", "x", False),
    ("plant/pump/reset", None, True),
    ("$jet/peers/1", {}, False),
]
FOUND = {
    "exact segments first, then beginnings, then anywhere": (
        "pump",
        ["plant/pump/reset", "plant/pump/speed", "plant/old-pump/speed", "plant/pumphouse/temp", "plant/impumpable"],
    ),
    "every word must be there": ("pump speed", ["plant/pump/speed", "plant/old-pump/speed"]),
    "case does not matter": ("PUMPHOUSE", ["plant/pumphouse/temp"]),
    "a glob is a rule": ("plant/*/speed", ["plant/pump/speed", "plant/old-pump/speed"]),
    "values are tested by rules": ("plant/** value>100", ["plant/pump/speed"]),
    "the daemon's own paths by name only": ("$jet/**", ["$jet/peers/1"]),
    "nothing": ("nowhere", []),
}


@pytest.mark.parametrize(("text", "paths"), FOUND.values(), ids=FOUND.keys())
def test_what_is_found(text: str, paths: list[str]) -> None:
    """Search finds paths in this order."""
    assert find_paths(text, ROWS) == paths


def test_a_wrong_rule_is_refused() -> None:
    """A rule that cannot be read is an error that says why."""
    with pytest.raises(InvalidRule, match="value"):
        find_paths("plant/** value>", ROWS)
