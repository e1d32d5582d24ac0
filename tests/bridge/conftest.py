"""Fixtures: two buses of a test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetbus.testing import RunningDaemon, running_daemon


@pytest.fixture
def far() -> Iterator[RunningDaemon]:
    """The bus that is mounted."""
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def near() -> Iterator[RunningDaemon]:
    """The bus it is mounted into."""
    with running_daemon() as daemon:
        yield daemon
