"""Fixtures: a bus to play onto, and something to play."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetbus.testing import RunningDaemon, running_daemon
from support.recordings import PLANT, recording


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    """A journal of a small plant."""
    return recording(tmp_path / "plant", PLANT)
