"""Bytes as values, through both faces and both protocols, and daemons that do not speak binary as they should."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import jetbus
from jetbus import Blob
from jetbus.testing import RunningDaemon
from jetbus.wire import binary
from jetbus.wire.framing import BINARY_STREAM
from support.peers import DEADLINE_S, PeerFactory, Twin, brief, raised, run, until

VALUES: dict[str, tuple[Any, bytes, str]] = {
    "bytes": (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
    "bytearray": (bytearray(b"ab"), b"ab", "application/octet-stream"),
    "no bytes": (b"", b"", "application/octet-stream"),
    "an image": (Blob(b"\x89PNG", mime="image/png"), b"\x89PNG", "image/png"),
    "a type without a number": (Blob(b"x", mime="x/ü"), b"x", "x/ü"),
    "much": (Blob(bytes(range(256)) * 4000, mime="audio/wav"), bytes(range(256)) * 4000, "audio/wav"),
}


@pytest.fixture(params=["JSON", "binary"])
def other(daemon: RunningDaemon, face: str, request: pytest.FixtureRequest) -> PeerFactory:
    """The same bus, by a protocol of its own choice."""
    return PeerFactory(daemon.url if request.param == "JSON" else daemon.binary_url, face)


def check_blob(found: Any, data: bytes, mime: str) -> None:
    assert type(found) is Blob
    assert (bytes(found), found.mime) == (data, mime)


@pytest.mark.parametrize(("given", "data", "mime"), VALUES.values(), ids=VALUES)
def test_values(bus: PeerFactory, other: PeerFactory, given: Any, data: bytes, mime: str) -> None:
    """Bytes that an owner adds and changes are found by get and fetch as a Blob with its type."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            state = await owner.add_state("cam/image", given)
            check_blob((await client.get_all("cam/image"))["cam/image"], data, mime)
            fetch = await (await client.fetch("cam/**", policy="every")).ready()
            await state.change(1)
            await state.change(given)
            await state.remove()
            events = await fetch.take(4)
            assert [event.kind for event in events] == ["add", "change", "change", "remove"]
            for event in (events[0], events[2], events[3]):
                check_blob(event.value, data, mime)
            assert events[1].value == 1

    run(case())


@pytest.mark.parametrize(("given", "data", "mime"), VALUES.values(), ids=VALUES)
def test_set(bus: PeerFactory, other: PeerFactory, given: Any, data: bytes, mime: str) -> None:
    """Bytes that are set arrive at on_set as a Blob, and become the value."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            asked: list[Any] = []
            await owner.add_state("cam/image", None, on_set=asked.append)
            assert not (await client.set("cam/image", given)).adapted
            check_blob(asked[0], data, mime)
            check_blob((await client.get_all("cam/image"))["cam/image"], data, mime)

    run(case())


def test_adapted_bytes(bus: PeerFactory, other: PeerFactory) -> None:
    """on_set may adapt to bytes."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            await owner.add_state("a", b"", on_set=lambda value: value[:2])
            assert (await client.set("a", b"abc")).adapted
            assert (await client.get_all("a"))["a"] == b"ab"

    run(case())


BECAME: dict[str, tuple[Any, Callable[[Any], Any], Any, Any]] = {
    "unchanged": (1, lambda _value: jetbus.UNCHANGED, 5, 1),
    "unchanged true": (True, lambda _value: jetbus.UNCHANGED, 5, True),
    "unchanged object": ({}, lambda _value: jetbus.UNCHANGED, {"became": 7}, {}),
    "unchanged bytes": (b"old", lambda _value: jetbus.UNCHANGED, b"new", b"old"),
    "accepted bytes": (b"old", lambda _value: None, b"new", b"new"),
    "adapted bytes": (b"old", lambda value: value[:1], b"new", b"n"),
    "accepted": (1, lambda _value: None, {"a": [1.5, None]}, {"a": [1.5, None]}),
    "adapted to null": (1, lambda _value: jetbus.Adapted(None), 5, None),
}


@pytest.mark.parametrize(("before", "on_set", "asked", "became"), BECAME.values(), ids=BECAME)
def test_the_result_of_a_set_is_what_the_state_became(
    bus: PeerFactory, other: PeerFactory, before: Any, on_set: Callable[[Any], Any], asked: Any, became: Any
) -> None:
    """Whatever the owner does with the value, and whatever both sides speak, the result has the value on the bus."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            await owner.add_state("a", before, on_set=on_set)
            result = await client.set("a", asked)
            assert (result.value, type(result.value)) == (became, type(await client.get("a")))

    run(case())


def test_bytes_as_result_of_a_set(bus: PeerFactory, other: PeerFactory) -> None:
    """A set that asks for the value as its result gets bytes as a Blob, too."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            await owner.add_state("a", b"", on_set=lambda value: value[:2])
            check_blob((await client.set("a", b"xyz", value_as_result=True)).value, b"xy", "application/octet-stream")

    run(case())


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one": ((b"\x01\x02",), {}),
    "with others": ((1, b"\x01\x02", "text", None), {}),
    "by name": ((), {"data": Blob(b"\x01", mime="image/png"), "size": 3}),
    "two": ((b"a", Blob(b"b", mime="x/y")), {}),
}


@pytest.mark.parametrize(("args", "keywords"), CALLS.values(), ids=CALLS)
def test_calls(bus: PeerFactory, other: PeerFactory, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Bytes are arguments like all others."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
            await owner.add_method("m", lambda *args, **keywords: seen.append((args, keywords)))
            await client.call("m", *args, **keywords)
            assert seen == [(args, keywords)]
            received = [*seen[0][0], *seen[0][1].values()]
            for found, given in zip(received, [*args, *keywords.values()], strict=True):
                if isinstance(given, bytes):
                    assert found.mime == getattr(given, "mime", "application/octet-stream")

    run(case())


@pytest.mark.parametrize(("given", "data", "mime"), VALUES.values(), ids=VALUES)
def test_results(bus: PeerFactory, other: PeerFactory, given: Any, data: bytes, mime: str) -> None:
    """Bytes are results like all others."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            await owner.add_method("m", lambda: given)
            check_blob(await client.call("m"), data, mime)

    run(case())


def test_what_is_inside_stays_a_dict(bus: PeerFactory, other: PeerFactory) -> None:
    """Only a whole value is read as a Blob: inside of another one it is what stands for it in JSON."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            state = await owner.add_state("a", {})
            await state.change({"image": Blob(b"\x00", mime="image/png")})
            await owner.info()
            assert await client.get_all("a") == {"a": {"image": {"mime": "image/png", "base64": "AA=="}}}

    run(case())


def test_bytes_inside_of_a_first_value(bus: PeerFactory) -> None:
    """Bytes inside of a value can be added as well as changed."""

    async def case() -> None:
        async with bus.peer() as owner:
            await owner.add_state("a", [Blob(b"\x00", mime="image/png")])
            assert await owner.get_all("a") == {"a": [{"mime": "image/png", "base64": "AA=="}]}

    run(case())


def test_mirror(bus: PeerFactory, other: PeerFactory) -> None:
    """A mirror has bytes, too."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            state = await owner.add_state("a", b"1")
            mirror = await (await client.mirror("**")).ready()
            check_blob(mirror.inner["a"], b"1", "application/octet-stream")
            await state.change(Blob(b"2", mime="image/png"))
            await until(lambda: mirror.inner["a"] == b"2")
            check_blob(mirror.inner["a"], b"2", "image/png")

    run(case())


def test_sorted(bus: PeerFactory, other: PeerFactory) -> None:
    """A sorted list shows bytes, in order of path."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            for path in ("b", "a", "c"):
                await owner.add_state(path, Blob(path.encode(), mime="x/y"))
            fetch = await (await client.fetch(sort_by="path", last=2)).ready()
            assert brief(fetch.items) == [("change", "a", b"a"), ("change", "b", b"b")]
            assert {event.value.mime for event in fetch.items} == {"x/y"}

    run(case())


def test_typed_fetch(bus: PeerFactory, other: PeerFactory) -> None:
    """A fetch that asks for bytes gets bytes, and says so when something else comes."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            state = await owner.add_state("a", Blob(b"\x01\x02", mime="image/png"))
            fetch = await client.fetch("a", type=bytes, policy="every")
            first = (await fetch.take(1))[0]
            assert bytes(first.value) == b"\x01\x02"
            await state.change([1])
            problem = (await fetch.take(1))[0]
            assert isinstance(problem, jetbus.InvalidValue)
            assert problem.path == "a"

    run(case())


def test_rules_see_what_json_sees(bus: PeerFactory, other: PeerFactory) -> None:
    """A value rule looks at bytes as JSON peers see them."""

    async def case() -> None:
        async with bus.peer() as owner, other.peer() as client:
            await owner.add_state("png", Blob(b"1", mime="image/png"))
            await owner.add_state("csv", Blob(b"1", mime="text/csv"))
            assert set(await client.get_all(fields={"mime": "image/png"})) == {"png"}

    run(case())


# -- daemons that are none


class Fake:
    """Listens, says one thing and notes what it hears."""

    def __init__(self, says: bytes) -> None:
        self._says = says
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._says)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()


@contextlib.asynccontextmanager
async def saying(says: bytes) -> AsyncIterator[Fake]:
    fake = Fake(says)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.url = f"jetb://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield fake


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def info(*version: int) -> bytes:
    return framed(struct.pack("<BIII", binary.INFO, *version))


@pytest.mark.parametrize("major", [0, 2, 99])
def test_another_major_version(face: str, major: int) -> None:
    """A daemon of another major version is refused with both versions."""

    async def case() -> None:
        async with saying(info(major, 3, 1)) as fake:
            problem = await raised(PeerFactory(fake.url, face).make(reconnect=False).connect())
            assert isinstance(problem, jetbus.NotConnected)
            assert (
                f"speaks version {major}.3.1 of the binary protocol, this peer speaks version {binary.VERSION[0]}"
                in str(problem)
            )

    run(case())


NO_DAEMONS = {
    "a request": framed(b"\2\1\0\0\0\1"),
    "an empty message": framed(b""),
    "a long info": framed(b"\1" + b"\0" * 20),
    "text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("says", NO_DAEMONS.values(), ids=NO_DAEMONS)
def test_something_else_listens(face: str, says: bytes) -> None:
    """A server that does not begin with an info message is refused with a hint."""

    async def case() -> None:
        async with saying(says) as fake:
            problem = await raised(PeerFactory(fake.url, face).make(reconnect=False).connect())
            assert isinstance(problem, jetbus.NotConnected)
            assert "speak" in str(problem)

    run(case())


def test_json_port_by_mistake(daemon: RunningDaemon, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binary at the port for JSON ends in an error that names the address, not in waiting."""
    monkeypatch.setattr("jetbus.peer.connection.CONNECT_S", 1.0)

    async def case() -> None:
        address = daemon.url.removeprefix("jet://")
        problem = await raised(PeerFactory(f"jetb://{address}", face).make(reconnect=False).connect())
        assert isinstance(problem, jetbus.NotConnected)
        assert address in str(problem)

    run(case())


def test_binary_port_by_mistake(daemon: RunningDaemon, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON at the port for binary ends in an error, not in waiting."""
    monkeypatch.setattr("jetbus.peer.connection.CONNECT_S", 1.0)

    async def case() -> None:
        address = daemon.binary_url.removeprefix("jetb://")
        peer = PeerFactory(f"jet://{address}", face).make(reconnect=False)
        assert isinstance(peer, Twin)
        assert isinstance(await raised(peer.connect()), jetbus.NotConnected)

    run(case())


class FrameSocket:
    """The daemon's end of a connection, for a test that decides what is read when."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")

    def read(self) -> bytes:
        return self._stream.read(int.from_bytes(self._stream.read(4), "little"))

    def read_function(self, function: int) -> bytes:
        """Return the next frame with that function, whatever comes before it."""
        while (frame := self.read())[5 if frame[0] == binary.REQUEST else 1] != function:
            assert frame
        return frame

    def write(self, *frames: bytes) -> None:
        self._connection.sendall(BINARY_STREAM.join(list(frames)))


def test_no_frame_is_written_into_another() -> None:
    """Frames of the peer itself wait until a longer frame, half of which a thread has written, is complete."""
    much = "x" * (32 << 20)  # more than any socket takes at once
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = jetbus.Peer(f"jetb://127.0.0.1:{server.getsockname()[1]}", reconnect=False)
        connecting = peer.connect_async()
        connection, _ = server.accept()
        connection.settimeout(DEADLINE_S)
        daemon = FrameSocket(connection)
        daemon.write(binary.INFO_MESSAGE)
        daemon.write(binary.encode_response(daemon.read()[1:5], binary.encode_json_body(b'{"name":"jetbus"}')))
        connecting.result(DEADLINE_S)
        call = peer.call_async("m")
        called = daemon.read_function(binary.CALL_METHOD)
        peer.fetch("a").close()  # its end has to wait for the number of the fetch
        fetched = daemon.read_function(binary.FETCH_STATES)
        daemon.read_function(binary.SERVICE)
        setting = threading.Thread(target=lambda: suppressing(peer.set, "long", much), daemon=True)

        def write_half(_call: Any) -> None:
            """Keep the peer's loop busy until the other thread has written what the socket takes."""
            open_requests = peer.open_request_count
            setting.start()
            deadline = time.monotonic() + DEADLINE_S
            while peer.open_request_count == open_requests and time.monotonic() < deadline:
                time.sleep(0.001)
            peer.set_async("behind", 1)  # takes the lock that the other thread holds while it writes

        call.add_done_callback(write_half)
        daemon.write(
            binary.encode_response(called[1:5], binary.encode_json_body(b"1")),
            binary.encode_response(fetched[1:5], binary.encode_number(7)),
        )
        frames = {frame[5 if frame[0] == binary.REQUEST else 1]: frame for frame in (daemon.read() for _ in range(3))}
        assert frames.keys() == {binary.SET_STATE, binary.UNFETCH}
        assert frames[binary.UNFETCH][-4:] == binary.encode_number(7)
        connection.close()
        peer.close()
        setting.join()


def suppressing(function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(jetbus.JetError):
        function(*args)
