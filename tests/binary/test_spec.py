"""Every dump of docs/binary-protocol.md is exchanged with a real daemon, byte for byte.

The dumps are read out of the page in the order in which they stand there; the test plays them in an order that makes
all of them true, with an owner and a client. What the page does not show (successes without payload, the owner's second
notify) is written out here.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.binary.client import BinaryPeer, connect
from support.binary.layout import (
    AUTHENTICATE,
    NOTIFY,
    SET,
    RoutedRequest,
    arrived_in,
    event,
    failure,
    framed,
    info,
    js,
    key,
    packed,
    request,
    success,
    u8,
    u32,
)
from support.daemon import Daemon

StartDaemon = Callable[..., Daemon]
PAGE = Path(__file__).parents[2] / "docs" / "binary-protocol.md"
SEVERAL_TRIES = 50


class Dump(NamedTuple):
    """One frame of the page: who sends it, and its message without the length."""

    sender: str
    message: bytes


def dumps() -> list[Dump]:
    """All dumps of the page, each checked in itself: its length, its lines and its text column."""
    found = []
    for block in re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for sender, body in re.findall(r"^(\w[^\n]*)\n((?:    [^\n]*\n)+)", block, re.MULTILINE):
            found.append(Dump(sender, _message(body.splitlines())))
    return found


def _message(lines: list[str]) -> bytes:
    data = b""
    for i, line in enumerate(lines):
        row = bytes.fromhex(line[4:51].strip())
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        assert line[53:] == shown, line
        assert len(row) == 16 or i == len(lines) - 1, line
        data += row
    (length,) = struct.unpack("<I", data[:4])
    assert length == len(data) - 4, lines
    return data[4:]


class Page:
    """Hands out the dumps by what they are, each once, and knows what is left."""

    def __init__(self) -> None:
        self.left = dumps()

    def next(self, sender: str, start: bytes) -> bytes:
        """The first dump of this sender that starts so."""
        for dump in self.left:
            if dump.sender == sender and dump.message.startswith(start):
                self.left.remove(dump)
                return dump.message
        raise AssertionError(f"no dump of {sender} starts with {start.hex(' ')}; left are {self.left}")

    def asked(self, sender: str, number: int) -> bytes:
        return self.next(sender, u8(2) + u32(number))

    def answered(self, sender: str, number: int) -> bytes:
        return self.next(sender, u8(3) + u32(number))

    def received(self, received: int, fetch_id: int) -> bytes:
        return self.next("daemon", bytes([4, received]) + u32(fetch_id))


@pytest.fixture
def daemon_of_the_page(start_daemon: StartDaemon, tmp_path: Path) -> Daemon:
    """A daemon that nobody has asked anything yet, and that knows ann."""
    users = tmp_path / "users.json"
    ann = {"password": "secret", "auth": {"fetchGroups": ["staff"], "setGroups": ["staff"], "callGroups": []}}
    users.write_text(json.dumps({"users": {"ann": ann}}))
    return start_daemon("--users", str(users))


@pytest.fixture
def owner(daemon_of_the_page: Daemon) -> Iterator[BinaryPeer]:
    with connect(daemon_of_the_page) as peer:
        yield peer


@pytest.fixture
def client(daemon_of_the_page: Daemon) -> Iterator[BinaryPeer]:
    with connect(daemon_of_the_page) as peer:
        yield peer


def test_every_dump(daemon_of_the_page: Daemon, owner: BinaryPeer, client: BinaryPeer) -> None:
    """Every dump of the page is sent or received as it says, and none is left over."""
    page = Page()
    greeting = page.next("daemon", u8(1))
    assert (owner.greeting, client.greeting) == (greeting, greeting)
    assert greeting == info(1, 0, 0)

    # Owning.
    owner.send(page.asked("owner", 1))
    assert owner.receive() == page.answered("daemon", 1)
    owner.send(page.asked("owner", 2))
    assert owner.receive() == success(2)
    owner.send(page.next("owner", bytes([4, NOTIFY])))
    owner.barrier()

    # The client shows who it is, fetches, and is told of what comes later, too.
    client.send(page.asked("client", 15))
    assert client.receive() == page.answered("daemon", 15)
    client.send(page.asked("client", 11))
    assert client.receive() == page.answered("daemon", 11)
    assert client.receive() == page.received(0x10, 1)
    owner.send(page.asked("owner", 3))
    assert owner.receive() == success(3)
    assert client.receive() == page.received(0x10, 1)

    # Asking: a set that the owner does, one that it refuses, and a call.
    client.send(page.asked("client", 7))
    assert owner.receive() == page.asked("daemon, to the owner", 1)
    owner.send(event(NOTIFY, key("pump/speed") + packed(js(1300))), page.answered("owner", 1))
    assert client.receive() == page.received(0x11, 1)
    assert client.receive() == page.answered("daemon, to the client", 7)
    client.send(page.asked("client", 8))
    assert arrived_in(owner.receive()) == [RoutedRequest(2, SET, "pump/speed", js(1400), {})]
    owner.send(failure(2, 1, "too fast"))
    assert client.receive() == failure(8, 1, "too fast")
    client.send(page.asked("client", 9))
    assert owner.receive() == page.asked("daemon, to the owner", 3)
    owner.send(page.answered("owner", 3))
    assert client.receive() == page.answered("daemon, to the client", 9)
    client.send(page.asked("client", 10))
    assert client.receive() == page.answered("daemon, to the client", 10)

    # Fetching sorted, and getting.
    client.send(page.asked("client", 12))
    assert client.receive() == success(12, u32(2))
    assert client.receive() == page.received(0x13, 2)
    client.send(page.asked("client", 14))
    assert client.receive() == page.answered("daemon", 14)
    client.send(request(100, 9, u32(2)))
    assert client.receive() == success(100)

    # Several events in one message, and the rest of owning.
    with connect(daemon_of_the_page) as bystander:
        bystander.done(AUTHENTICATE, key("ann") + key("secret"))
        bystander.fetch("pump/")
        _several(owner, client, page.received(0x14, 1))
    owner.send(event(NOTIFY, key("pump/speed") + packed(js(1300))), request(6, 2, key("pump/speed")))
    assert owner.receive() == success(6)
    assert client.received(1, 2)[1] == arrived_in(page.received(0x12, 1))[0]
    owner.send(page.asked("owner", 4))
    assert owner.receive() == success(4)
    owner.send(page.asked("owner", 5))
    assert owner.receive() == success(5)
    assert [received.path for received in client.received(1, 1)] == ["pump/stop"]

    # The rest.
    client.send(page.asked("client", 13))
    assert client.receive() == success(13)
    client.send(page.asked("client", 16))
    assert client.receive() == success(16)
    client.send(page.asked("client", 17))
    assert client.receive() == page.answered("daemon", 17)
    client.send(u8(9))
    assert client.receive() == page.answered("daemon", 0)
    assert client.everything() == []
    assert owner.everything() == []
    assert page.left == []


def _several(owner: BinaryPeer, client: BinaryPeer, message: bytes) -> None:
    """Two changes in one chunk are told in one message, if the daemon reads them at once and has two to tell."""
    notify = [event(NOTIFY, key("pump/speed") + packed(js(value))) for value in (1301, 1302)]
    single = [u8(4) + u8(0x11) + u32(1) + change[2:] for change in notify]
    for _ in range(SEVERAL_TRIES):
        owner.send_raw(framed(*notify))
        received = client.receive()
        if received == message:
            return
        assert [received, client.receive()] == single
    raise AssertionError(f"the daemon never told two changes of one chunk in one message in {SEVERAL_TRIES} tries")


def test_dumps_are_found() -> None:
    """The page has dumps of the daemon, an owner and a client, and of every function."""
    found = dumps()
    assert {dump.sender for dump in found} == {
        "daemon",
        "owner",
        "client",
        "daemon, to the owner",
        "daemon, to the client",
    }
    asked = {dump.message[5] for dump in found if dump.message[0] == 2}
    received = {dump.message[1] for dump in found if dump.message[0] == 4}
    assert asked | received >= {*range(1, 14), *range(0x10, 0x15)}


def test_every_number_is_in_the_table() -> None:
    """Each kind of number that the page uses is in its table of layouts, with its size."""
    page = PAGE.read_text()
    table = dict(re.findall(r"^\| ((?:[ui]\d+(?:, )?)+) \| \w+ number of ([\d, ]+) bytes \|$", page, re.MULTILINE))
    sizes = {
        name: int(size)
        for names, counts in table.items()
        for name, size in zip(names.split(", "), counts.split(", "), strict=True)
    }
    assert all(8 * size == int(name[1:]) for name, size in sizes.items())
    assert set(re.findall(r"\b[ui](?:8|16|32|64)\b", page)) == sizes.keys()
