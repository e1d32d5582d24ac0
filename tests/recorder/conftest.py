"""Fixtures: a daemon of its own for each test, in this process so that it can be restarted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetbus.testing import RunningDaemon, running_daemon


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon() as daemon:
        yield daemon
