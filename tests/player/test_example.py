"""The example that records, replays and compares, as the command a newcomer types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "replay.py"
WITHIN_S = 120


@pytest.mark.parametrize("options", [[], ["--speed", "0", "--prefix", "again/and/again/"]], ids=["as it was", "fast"])
def test_the_histories_are_equal(options: list[str]) -> None:
    """Recording and replay are the same, event by event."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    played, recorded, replayed, verdict = done.stdout.splitlines()
    assert played.startswith("played: ")
    assert recorded.split()[1] == replayed.split()[1]
    assert verdict == "the histories are equal"
