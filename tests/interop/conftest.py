"""Fixtures: the node-jet versions, the transports, and a bus to connect them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.daemon import Daemon
from support.node import Node, NodeBus, Transport, Version

BusOf = Callable[[Daemon], NodeBus]
FreshNode = Callable[[Version], Node]


@pytest.fixture(params=[1, 2, 3], ids=["nj1", "nj2", "nj3"])
def version(request: pytest.FixtureRequest) -> Version:
    """A major version of node-jet."""
    chosen: Version = request.param
    return chosen


@pytest.fixture(params=[1, 2], ids=["nj1", "nj2"])
def classic(request: pytest.FixtureRequest) -> Version:
    """A version of node-jet with timeouts, results of calls, sorting and fetch-only states."""
    chosen: Version = request.param
    return chosen


@pytest.fixture(params=["tcp", "ws"])
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture(scope="session")
def nodes() -> Iterator[dict[Version, Node]]:
    """A Node.js process for each version, shared by all tests."""
    running: dict[Version, Node] = {}
    versions: tuple[Version, ...] = (1, 2, 3)
    try:
        for one in versions:
            running[one] = Node(one)
        yield running
    finally:
        for node in running.values():
            node.close()


@pytest.fixture
def fresh_node() -> Iterator[FreshNode]:
    """Start Node.js processes of this test's own: to be killed, or to count their fetch ids from 1."""
    started: list[Node] = []

    def fresh(version: Version) -> Node:
        started.append(Node(version))
        return started[-1]

    yield fresh
    for node in started:
        node.close()


@pytest.fixture
def bus_of(nodes: dict[Version, Node], fresh_node: FreshNode) -> Iterator[BusOf]:  # noqa: ARG001 - closed after the bus
    """Make a bus of any daemon; its peers are closed after the test."""
    made: list[NodeBus] = []

    def bus_of(daemon: Daemon) -> NodeBus:
        made.append(NodeBus(daemon, nodes))
        return made[-1]

    yield bus_of
    for bus in made:
        bus.close()


@pytest.fixture
def bus(daemon: Daemon, bus_of: BusOf) -> NodeBus:
    """The bus of the shared daemon, with nothing on it."""
    return bus_of(daemon)
