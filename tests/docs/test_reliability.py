"""The numbers on the page about reliability are those of the tests."""

from __future__ import annotations

import re

from support.docs import DOCS, ROOT


def kills_of(test: str) -> str:
    found = re.search(r"^KILLS = (\d+)$", (ROOT / "tests" / test).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{test} has no KILLS"
    return found[1]


def test_the_kills_are_counted() -> None:
    """The page says how many daemons and recorders the tests kill."""
    page = (DOCS / "reliability.md").read_text(encoding="utf-8")
    daemons, recorders = kills_of("daemon/test_journal_crash.py"), kills_of("recorder/test_killed.py")
    assert f"{daemons} daemons under load and {recorders} recorders" in page
