"""Random and mutated messages in random chunks: the daemon lives, speaks as its page says, and the bus is consistent.

After each attack witnesses of both protocols compare what they were told with what is there (see `witness`), and all
that the attacker was sent is read by the strict client.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.binary.client import BinaryPeer, connect
from support.binary.layout import (
    ABSENT,
    ADD_METHOD,
    ADD_STATE,
    AUTHENTICATE,
    CALL,
    CONFIG,
    FETCH,
    GET,
    NOTIFY,
    OCTETS,
    REMOVE_METHOD,
    REMOVE_STATE,
    SERVICE,
    SET,
    UNFETCH,
    Value,
    event,
    failure,
    framed,
    info,
    js,
    key,
    options,
    other,
    packed,
    request,
    success,
    text,
    u32,
)
from support.binary.witness import Witness
from support.daemon import Daemon

FUZZ = settings(
    max_examples=50,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PAYLOADS: list[tuple[int, bytes]] = [
    (ADD_STATE, key("fuzz/s") + packed(js([1, 2.5, "ü"]))),
    (ADD_STATE, key("fuzz/t") + packed(text("grün")) + options({"fetchOnly": True, "timeout": 0.01})),
    (ADD_STATE, key("fuzz/o/a") + packed(other("a/b", b"\x00\x01"))),
    (ADD_METHOD, key("fuzz/m") + options({"access": {"fetchGroups": []}})),
    (NOTIFY, key("fuzz/s") + packed(Value(OCTETS, bytes(range(16))))),
    (NOTIFY, key("fuzz/t") + packed(js(b"{"))),
    (SET, key("fuzz/s") + packed(js(1)) + options({"timeout": 0.01, "valueAsResult": True})),
    (CALL, key("fuzz/m") + packed(ABSENT) + options({"timeout": 0.01})),
    (FETCH, key("fuzz/")),
    (FETCH, key("") + options({"sort": {"byValue": "number"}, "value": {"lessThan": 10}})),
    (GET, key("fuzz/") + options({"path": {"endsWith": "s"}})),
    (UNFETCH, u32(1)),
    (CONFIG, key("fuzz") + options({"encoding": "binary"})),
    (SERVICE, key("echo") + packed(js({"a": 1}))),
    (SERVICE, key("info") + packed(ABSENT)),
    (REMOVE_STATE, key("fuzz/s")),
    (REMOVE_METHOD, key("fuzz/m")),
]
VALID = [
    info(),
    *(request(i, *payload) for i, payload in enumerate(PAYLOADS, 1)),
    *(event(*payload) for payload in PAYLOADS),
    *(success(i) for i in (1, 2)),
    success(1, packed(js(True))),
    failure(1, -5, "no", js({"a": 1})),
]
# Delays what comes behind it, longer each time: at most one for an example.
REFUSED = request(99, AUTHENTICATE, key("ann") + key("secret"))

numbers = st.sampled_from([0, 1, 2, 5, 9, 0x10, 0x14, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid message with some bytes changed, cut out, doubled or put in."""
    message = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(message)))
        change = draw(st.sampled_from(["set", "cut", "double", "insert", "length"]))
        if change == "set" and at < len(message):
            message[at] = draw(numbers)
        elif change == "cut":
            del message[at : at + draw(st.integers(1, 8))]
        elif change == "double":
            message[at:at] = message[at : at + draw(st.integers(1, 8))]
        elif change == "insert":
            message[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif change == "length" and at + 4 <= len(message):
            message[at : at + 4] = struct.pack("<I", draw(st.integers(0, 0xFFFFFFFF)))
    return bytes(message)


messages = st.lists(mutated() | st.binary(max_size=40), min_size=1, max_size=25)
cuts = st.lists(st.integers(1, 200), max_size=10)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Daemon]:
    with Daemon.start("--message-bytes-max", "100000", "--ws-ping-s", "0") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def witness(fuzzed: Daemon) -> Iterator[Witness]:
    witness = Witness(fuzzed)
    yield witness
    witness.close()


def attack(daemon: Daemon, transport: str, chunks: list[bytes]) -> None:
    """Send these chunks and nothing more; all that the daemon says until it closes must be as the page says."""
    with connect(daemon, transport) as peer:
        try:
            for chunk in chunks:
                peer.send_raw(chunk)
            _end(peer)
        except OSError:
            return
        peer.await_closed()


def _end(peer: BinaryPeer) -> None:
    peer.line.sock.shutdown(socket.SHUT_WR)


def chunked(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    for size in sizes:
        chunks.append(data[:size])
        data = data[size:]
    return [chunk for chunk in [*chunks, data] if chunk]


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@FUZZ
@given(data=st.binary(max_size=300), sizes=cuts)
def test_random_bytes(fuzzed: Daemon, witness: Witness, transport: str, data: bytes, sizes: list[int]) -> None:
    """Random bytes do no harm."""
    attack(fuzzed, transport, chunked(data, sizes))
    witness.check()
    fuzzed.check()


@pytest.mark.parametrize("transport", ["tcp", "unix", "ws"])
@FUZZ
@given(sent=messages, sizes=cuts, login=st.booleans())
def test_mutated_messages(
    fuzzed: Daemon, witness: Witness, transport: str, sent: list[bytes], sizes: list[int], login: bool
) -> None:
    """Valid messages with wrong bytes in them, in random chunks and behind a refused login, do no harm."""
    if login:
        sent.insert(len(sent) // 2, REFUSED)
    chunks = [framed(message) for message in sent] if transport == "ws" else chunked(framed(*sent), sizes)
    attack(fuzzed, transport, chunks)
    witness.check()
    fuzzed.check()


@FUZZ
@given(sent=messages)
def test_the_connection_lives(fuzzed: Daemon, witness: Witness, sent: list[bytes]) -> None:
    """However wrong whole frames are, a good request behind them is answered."""
    last = 0xF00DF00D
    with connect(fuzzed) as peer:
        peer.send(info(), *sent, request(last, SERVICE, key("echo") + packed(js([1]))))
        assert peer.response(last) == (last, True, packed(js([1])))
    witness.check()
    fuzzed.check()


values = st.builds(Value, st.sampled_from([1, 2, 3, 5, 20]), st.binary(max_size=30)) | st.builds(
    other, st.text(st.characters(codec="utf-8"), max_size=8), st.binary(max_size=8)
)
words = st.text(st.characters(codec="utf-8"), max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
documents = leaves | st.lists(leaves, max_size=4) | st.dictionaries(words, leaves, max_size=3)


@FUZZ
@given(sent=st.lists(values | documents.map(js), min_size=1, max_size=20))
def test_random_values(fuzzed: Daemon, witness: Witness, sent: list[Value]) -> None:
    """Values of any type and bytes reach binary fetchers as they are, and JSON fetchers as valid JSON."""
    with connect(fuzzed) as owner, connect(fuzzed, "unix") as fetcher:
        fetch_id = fetcher.fetch("values/")
        owner.add_state("values/s", sent[0])
        owner.send(*(event(NOTIFY, key("values/s") + packed(value)) for value in sent))
        assert [received.value for received in fetcher.received(fetch_id, len(sent) + 1)] == [sent[0], *sent]
    witness.check()
    fuzzed.check()
