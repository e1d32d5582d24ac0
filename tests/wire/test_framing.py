"""Framing: a byte stream cut into messages, however it arrives, and the headers that go out."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from jetbus.wire.framing import BINARY_STREAM, STREAM, WEBSOCKET, Framing, StreamDecoder

BYTES_MAX = 300


def _framed(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message


@st.composite
def _pieces(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Messages, and their stream cut anywhere."""
    messages = draw(st.lists(st.binary(max_size=BYTES_MAX), max_size=6))
    stream = b"".join(map(_framed, messages))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    return messages, [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(_pieces())
def test_any_split_gives_the_same_messages(drawn: tuple[list[bytes], list[bytes]]) -> None:
    """However a stream is cut on its way, the messages are those that were sent."""
    messages, pieces = drawn
    decoder = StreamDecoder(BYTES_MAX)
    assert [message for piece in pieces for message in decoder.feed(piece)] == messages
    assert decoder.overlong is None
    assert decoder.pending_bytes == 0


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_byte_by_byte(messages: list[bytes]) -> None:
    """A message is there with its last byte and not before."""
    decoder = StreamDecoder(BYTES_MAX)
    for message in messages:
        framed = _framed(message)
        for at in range(len(framed) - 1):
            assert decoder.feed(framed[at : at + 1]) == []
            assert decoder.pending_bytes == at + 1
        assert decoder.feed(framed[-1:]) == [message]


def test_empty_messages() -> None:
    """A message of no bytes is a message."""
    assert StreamDecoder(BYTES_MAX).feed(_framed(b"") * 3) == [b"", b"", b""]


def test_longest_message() -> None:
    """A message of exactly the allowed length passes."""
    decoder = StreamDecoder(BYTES_MAX)
    assert decoder.feed(_framed(b"x" * BYTES_MAX)) == [b"x" * BYTES_MAX]
    assert decoder.overlong is None


@given(st.lists(st.binary(max_size=20), max_size=3), st.integers(BYTES_MAX + 1, 2**32 - 1), st.data())
def test_overlong_message(before: list[bytes], length: int, data: st.DataObject) -> None:
    """A message that is too long is known by its header; the messages before it still arrive."""
    stream = b"".join(map(_framed, before)) + struct.pack(">I", length)
    cut = data.draw(st.integers(0, len(stream)))
    decoder = StreamDecoder(BYTES_MAX)
    messages = decoder.feed(stream[:cut])
    if decoder.overlong is None:
        messages += decoder.feed(stream[cut:])
    assert messages == before
    assert decoder.overlong == length


def test_nothing_is_kept_for_an_overlong_message() -> None:
    """Bytes behind the header of an overlong message take no memory."""
    decoder = StreamDecoder(BYTES_MAX)
    decoder.feed(struct.pack(">I", 2**32 - 1) + b"x" * 10_000)
    assert decoder.pending_bytes == 0


STREAM_HEADERS = {
    "nothing": (0, b"\0\0\0\0"),
    "one byte": (1, b"\0\0\0\1"),
    "big-endian": (0x01020304, b"\1\2\3\4"),
    "longest": (2**32 - 1, b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize(("length", "header"), STREAM_HEADERS.values(), ids=STREAM_HEADERS)
def test_stream_header(length: int, header: bytes) -> None:
    """On TCP and Unix sockets a 32-bit big-endian length precedes a message."""
    assert STREAM.header(length) == header


@pytest.mark.parametrize("framing", [STREAM, WEBSOCKET, BINARY_STREAM], ids=lambda framing: framing.name)
@pytest.mark.parametrize("lengths", [[], [0, 1, 511], [512], [3, 511, 512, 70_000, 2]], ids=str)
def test_messages_after_their_headers(framing: Framing, lengths: list[int]) -> None:
    """Every message follows the header of its length, whichever lengths come together."""
    messages = [b"x" * length for length in lengths]
    assert framing.join(messages) == b"".join(framing.header(len(message)) + message for message in messages)


WEBSOCKET_HEADERS = {
    0: b"\x81\x00",
    1: b"\x81\x01",
    125: b"\x81\x7d",
    126: b"\x81\x7e\x00\x7e",
    65535: b"\x81\x7e\xff\xff",
    65536: b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00",
    262144: b"\x81\x7f\x00\x00\x00\x00\x00\x04\x00\x00",
}


@pytest.mark.parametrize(("length", "header"), WEBSOCKET_HEADERS.items())
def test_websocket_header(length: int, header: bytes) -> None:
    """On WebSocket a message is one unmasked text frame, with the shortest header its length allows."""
    assert WEBSOCKET.header(length) == header
    payload = b"x" * length
    assert header + payload == Frame(Opcode.TEXT, payload).serialize(mask=False)
