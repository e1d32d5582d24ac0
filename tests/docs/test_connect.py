"""Programs of the pages that connect a bus to something else run, against a real daemon and the other side.

The other side of MQTT is a broker for one client, which knows as much of MQTT 3.1.1 as that client needs.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import pytest

import jetbus
from jetbus.testing import RunningDaemon, running_daemon
from support.docs import DEADLINE_S, DOCS, blocks_of
from support.program import Program

CONNECT, PUBLISH, SUBSCRIBE = 1, 3, 8
"""Types of packets."""
CONNECTED, SUBSCRIBED = b"\x20\x02\x00\x00", b"\x90\x03"


class Broker:
    """A broker for one client that subscribes and publishes at QoS 0."""

    def __init__(self) -> None:
        self.published: queue.SimpleQueue[tuple[str, bytes, bool]] = queue.SimpleQueue()
        """Topic, payload and retain flag of each message of the client."""
        self.subscribed = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._client: socket.socket | None = None

    def publish(self, topic: str, payload: bytes) -> None:
        """Send a message to the client."""
        assert self._client is not None
        body = len(topic).to_bytes(2) + topic.encode() + payload
        self._client.sendall(bytes([PUBLISH << 4, len(body)]) + body)

    def _serve(self) -> None:
        self._client, _ = self._server.accept()
        with self._client, self._client.makefile("rb") as stream:
            while header := stream.read(1):
                self._answer(header[0], stream.read(_length(stream)))

    def _answer(self, header: int, body: bytes) -> None:
        assert self._client is not None
        kind = header >> 4
        if kind == CONNECT:
            self._client.sendall(CONNECTED)
        elif kind == SUBSCRIBE:
            self._client.sendall(SUBSCRIBED + body[:2] + b"\x00")
            self.subscribed.set()
        elif kind == PUBLISH:
            end = 2 + int.from_bytes(body[:2])
            self.published.put((body[2:end].decode(), body[end:], bool(header & 1)))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is None:  # nobody came: let the thread see an end
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(DEADLINE_S)
        self._server.close()


def _length(stream: BinaryIO) -> int:
    """Read the remaining length of a packet: seven bits a byte, the lowest first."""
    length = shift = 0
    while True:
        (byte,) = stream.read(1)
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return length


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon() as running:
        yield running


@pytest.fixture
def run_file(daemon: RunningDaemon, tmp_path: Path) -> Callable[..., Program]:
    """Run a file of a page, with other texts in place of some of its own."""

    def start(page: str, name: str, *replaced: tuple[str, str]) -> Program:
        (block,) = [block for block in blocks_of(DOCS / page) if block.word == name]
        text = block.text
        for theirs, ours in replaced:
            assert theirs in text
            text = text.replace(theirs, ours)
        (tmp_path / name).write_text(text, encoding="utf-8")
        environment = {**os.environ, "JET_URL": daemon.url, "PYTHONUNBUFFERED": "1"}
        return Program(sys.executable, name, folder=tmp_path, environment=environment)

    return start


def test_states_become_topics_and_back(daemon: RunningDaemon, run_file: Callable[..., Program]) -> None:
    """The MQTT program retains each value at the broker, and a message to PATH/set is a set request."""
    with (
        jetbus.Peer(daemon.url) as owner,
        Broker() as broker,
        run_file("connect.md", "mqtt.py", ('"localhost", 1883', f'"127.0.0.1", {broker.port}')) as program,
    ):
        owner.add_state("plant/pump/speed", 900, on_set=lambda rpm: min(rpm, 3000))
        assert broker.published.get(timeout=DEADLINE_S) == ("plant/pump/speed", b"900", True)
        assert broker.subscribed.wait(DEADLINE_S)
        broker.publish("plant/pump/speed", b"900")  # a broker sends its own copy back
        broker.publish("plant/pump/speed/set", b"not JSON")
        broker.publish("plant/pump/speed/set", json.dumps(5000).encode())
        assert broker.published.get(timeout=DEADLINE_S) == ("plant/pump/speed", b"3000", True)
        assert program.line() == "plant/pump/speed set"


def test_alarms_are_notified(daemon: RunningDaemon, run_file: Callable[..., Program]) -> None:
    """The notifier prints an alarm that is raised, also one that was raised before, and none that is cleared."""
    hot = "spark/plant/alarms/hot/plant/oven/temperature"
    with jetbus.Peer(daemon.url) as pipeline:
        alarm = pipeline.add_state(hot, {"what": "raised", "value": 91})
        with run_file("howto/alarm.md", "notify.py") as program:
            assert program.line() == f"alarm: {hot} is 91"
            alarm.change({"what": "cleared", "value": 70})
            alarm.change({"what": "raised", "value": 95})
            assert program.line() == f"alarm: {hot} is 95"
