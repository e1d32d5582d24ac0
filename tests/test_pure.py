"""jetbus without anything compiled: the tests of messages, bus and daemon pass as they do with the lane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAME_TESTS = [
    "tests/wire/test_framing.py",
    "tests/bus/test_bus.py",
    "tests/bus/test_departure.py",
    "tests/bus/test_record.py",
    "tests/bus/test_rights.py",
    "tests/bus/test_routes.py",
    "tests/daemon/test_batches.py",
    "tests/daemon/test_conditions.py",
    "tests/daemon/test_outbox.py",
    "tests/daemon/test_transcripts.py",
    "tests/daemon/test_turns.py",
]
"""Tests of all that the lane does, and of what depends on the bytes of dialects and the order of messages."""
PURE = {"JETBUS_PURE": "1"}


@pytest.mark.timeout(900)
def test_everything_works_in_python() -> None:
    """With ``JETBUS_PURE=1`` the same tests pass, in a process and on daemons without the compiled lane."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *SAME_TESTS]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | PURE, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout[-3000:]


def test_pure_python_is_pure() -> None:
    """``JETBUS_PURE=1`` keeps the compiled lane and the compiled iterator from being imported."""
    code = (
        "import sys, jetbus.bus.bus, jetbus.peer.handles; from jetbus.wire import lane;"
        "assert lane.compiled is None; assert not [name for name in sys.modules if name in"
        " ('jetbus.wire._lane', 'jetbus.peer._iterator')]; print(type(jetbus.bus.bus.Bus().lane).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | PURE, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "PlainLane", done.stderr
