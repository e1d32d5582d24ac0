"""Fixtures: binary and JSON peers of one daemon, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support.binary.client import BinaryPeer, connect
from support.daemon import Daemon
from support.wire import Wire

Connect = Callable[..., BinaryPeer]
ConnectJson = Callable[..., Wire]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """List of objects to close after the test, before its daemon is checked."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def binary(daemon: Daemon, opened: ExitStack) -> Connect:
    """Connect binary peers to the shared daemon."""

    def connected(transport: str = "tcp", *, receive_buffer_bytes: int | None = None) -> BinaryPeer:
        return opened.enter_context(connect(daemon, transport, receive_buffer_bytes=receive_buffer_bytes))

    return connected


@pytest.fixture
def jsons(daemon: Daemon, opened: ExitStack) -> ConnectJson:
    """Connect JSON peers to the shared daemon."""

    def connected(transport: str = "tcp") -> Wire:
        return opened.enter_context(daemon.connect(transport))

    return connected
