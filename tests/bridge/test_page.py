"""The page on bridges runs."""

from __future__ import annotations

import re

import pytest

from jetbus.bridge import Bridge, Phase
from support.docs import DOCS, run_page

PAGE = (DOCS / "bridge.md").read_text(encoding="utf-8")


def test_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of the page runs, in order, and prints what its comments say."""
    run_page("bridge.md", capsys)


def test_options_are_documented() -> None:
    """The page has every option of a bridge and every phase."""
    words = set(re.findall(r"`(\w+)`", PAGE))
    names = set(Bridge.__init__.__annotations__) - {"return", "near_user", "near_password", "near_tls"}
    assert names | {phase.name for phase in Phase} <= words
