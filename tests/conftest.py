"""Fixtures: real daemons, shared by all tests that start them with the same options."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from support.daemon import Daemon

Daemons = Callable[..., Daemon]


def pytest_configure() -> None:
    """Processes started in the background of a shell ignore Ctrl-C, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Daemons that a test starts with its own flags listen nowhere else; two of them must not want the same port.
    os.environ |= {"JET_BINARY": "off", "JET_BINARY_UNIX": "off"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a real Spark comes last: it takes longest."""
    for item in items:
        if "spark" in item.path.parts:
            item.add_marker("spark")
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)


@pytest.fixture(scope="session")
def shared_daemons() -> Iterator[Daemons]:
    """Start a daemon with these options, or hand out the one that is running with them."""
    running: dict[tuple[str, ...], Daemon] = {}

    def shared(*options: str) -> Daemon:
        if options not in running:
            running[options] = Daemon.start(*options)
        return running[options]

    yield shared
    for daemon in running.values():
        daemon.stop()


@pytest.fixture
def daemon(shared_daemons: Daemons) -> Iterator[Daemon]:
    """A daemon with default options and nothing on its bus; shared, so that a test must close what it opens."""
    shared = shared_daemons()
    shared.await_empty()
    yield shared
    shared.check()


@pytest.fixture
def start_daemon() -> Iterator[Daemons]:
    """Start daemons of this test's own, with any options; they are stopped and checked after it."""
    started: list[Daemon] = []

    def start(*options: str) -> Daemon:
        started.append(Daemon.start(*options))
        return started[-1]

    yield start
    for own in started:
        own.stop()
