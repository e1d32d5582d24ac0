"""A bus without sockets: outboxes that keep what they are given, peers that talk to the bus directly, and a transport
that takes the place of the operating system's.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

from jetbus.bus.audiences import Audience
from jetbus.bus.bus import Bus
from jetbus.bus.ports import Part
from jetbus.bus.session import Session

_Ts = TypeVarTuple("_Ts")
LENGTH = struct.Struct(">I")


def frames_of(stream: bytes) -> list[bytes]:
    """The messages in a stream of length-prefixed frames, which must be whole."""
    frames = []
    at = 0
    while at < len(stream):
        (length,) = LENGTH.unpack_from(stream, at)
        frame = stream[at + LENGTH.size : at + LENGTH.size + length]
        assert len(frame) == length, "a frame is cut off"
        frames.append(frame)
        at += LENGTH.size + length
    return frames


class RecordingOutbox:
    """An outbox that is never slow and keeps everything."""

    def __init__(self) -> None:
        self.slow = False
        self.closed = False
        self.unread_bytes = 0
        self._parts: list[Any] = []
        self._open: Audience | None = None

    def put(self, frame: bytes) -> None:
        self._seal()
        self._parts.append(frame)

    def batch(self) -> None:
        raise AssertionError("this outbox has no frames")

    def put_chunk(self, audience: Audience, chunk: Part) -> None:
        self._seal()
        self._open = audience
        self._parts.append(chunk)

    def lend(self, audience: Audience, /) -> list[bytes]:
        self._seal()
        self._open = audience
        return self._parts

    def put_event(self, audience: Audience, path: str, kind: str, frame: bytes) -> None:
        raise AssertionError(f"{audience.key}: {kind} of {path}, though only a slow outbox takes {frame!r} by itself")

    def forget(self, audience: Audience) -> None:
        """Nothing is ever replaced here."""

    def forget_all(self) -> None:
        """Nothing is ever replaced here."""

    def note_gathered(self, size: int) -> None:
        """There is no limit here."""

    def awaits_window(self, _audience: Audience) -> bool:
        return False

    def take(self) -> bytes:
        """All bytes that have been put in since the last time."""
        self._seal()
        parts, self._parts = self._parts, []
        return b"".join(part if isinstance(part, bytes) else part.joined() for part in parts)

    def _seal(self) -> None:
        if self._open is not None:
            self._open.close_chunk()
            self._open = None


class Peer:
    """A peer of a bus in the same program: what it sends is handled at once, what it is told waits to be read."""

    def __init__(self, bus: Bus, address: str = "") -> None:
        self.bus = bus
        self.outbox = RecordingOutbox()
        self.session: Session = bus.connect(self.outbox, address=address)
        self._ids = 0

    def send_text(self, *texts: str, now: float = 0.0) -> None:
        messages = [text.encode() for text in texts]
        if self.session.fresh:
            messages = self.bus.receive_first(self.session, messages, now)
        self.bus.receive(self.session, messages, now)

    def send(self, *messages: Any, now: float = 0.0) -> None:
        self.send_text(*(json.dumps(message, separators=(",", ":")) for message in messages), now=now)

    def notify(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def told_texts(self) -> list[str]:
        """Every message since the last time, as text."""
        return [frame.decode() for frame in frames_of(self.outbox.take())]

    def received(self) -> list[Any]:
        """Every message since the last time."""
        return [json.loads(text) for text in self.told_texts()]

    def events(self) -> list[Any]:
        """The parameters of every notification since the last time; nothing else may have come."""
        received = self.received()
        assert all("id" not in message and "params" in message for message in received), received
        return [message["params"] for message in received]

    def request(self, method: str, params: Any, **extra: Any) -> Any:
        """The response to a request that the bus answers at once; nothing else may come with it."""
        self._ids += 1
        self.send({"id": self._ids, **extra, "method": method, "params": params})
        received = self.received()
        assert [message.get("id") for message in received] == [self._ids], received
        return received[0]

    def result(self, method: str, params: Any) -> Any:
        response = self.request(method, params)
        assert "result" in response, response
        return response["result"]

    def error(self, method: str, params: Any) -> Any:
        response = self.request(method, params)
        assert "error" in response, response
        return response["error"]

    def data(self, method: str, params: Any) -> Any:
        """The data of the error of a request that is refused for its parameters."""
        error = self.error(method, params)
        assert error["code"] == -32602, error
        return error["data"]

    def fetch(self, fetch_id: Any = "f", **params: Any) -> list[Any]:
        """Fetch, and give the first events."""
        self.send({"method": "fetch", "params": {"id": fetch_id, **params}})
        return self.events()

    def disconnect(self) -> None:
        self.bus.disconnect(self.session)


class MemoryTransport(asyncio.Transport):
    """Transport of an outbox in memory: takes bytes, and holds some of them back while ``stuck``."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.stuck_bytes = 0
        self.stuck = False
        self.aborted = False

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.aborted, "written after the end"
        self.writes.append(bytes(data))
        if self.stuck:
            self.stuck_bytes += len(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class IdleLoop(asyncio.SelectorEventLoop):
    """An event loop that runs nothing: whoever has it decides when outboxes are written."""

    def __init__(self) -> None:
        super().__init__()
        self.close()

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return asyncio.Handle(callback, args, self, context)
