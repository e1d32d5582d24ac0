"""Fuzz targets: functions that take any bytes, and raise if the part of jetbus that reads them misbehaves.

`TARGETS` is the table, one row a surface: what strangers send to a daemon, and what a damaged disk gives to a journal.
Expected refusals are swallowed here. Whatever else comes out of a target is a bug: an exception, a traceback in the log
of the daemon, an answer that is no JSON, a disagreement with a reference. Targets keep nothing from call to call, so
that an input that fails fails again.

`make fuzz` lets coverage guide the inputs (run.py), tests/fuzz/test_targets.py tries the corpus and mutations of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from lupa.lua51 import LuaRuntime  # type: ignore[import-untyped]

from jetbus import journal
from jetbus.daemon.config import Config
from jetbus.daemon.connection import BinaryConnection, Connection, StreamConnection, WebSocketConnection
from jetbus.daemon.daemon import Daemon
from jetbus.errors import JetError
from jetbus.journal.journal_errors import JournalError
from jetbus.luapattern import lua_matcher
from jetbus.rules import Rule
from jetbus.rules.decoding import read_rule, write_rule
from jetbus.rules.text import parse_rule
from support.inmemory import MemoryTransport, frames_of
from support.twins import Step, framed, play

Target = Callable[[bytes], None]

PATTERN_CHARS, SUBJECT_CHARS = 24, 24
"""A backtracking matcher, which Lua's is, comes to an end for texts as short as these."""
WITNESS = [
    {"method": "add", "params": {"path": "witness/state", "value": 1}},
    {"method": "add", "params": {"path": "witness/method"}},
    {"method": "fetch", "params": {"id": "w", "path": {"startsWith": ""}}},
]
AFTER = {"id": "after", "method": "echo", "params": {"still": "here"}}


class Found(AssertionError):
    """Something that a target must not do."""


class _Complaints(logging.Handler):
    """Tracebacks that the daemon would have written to its log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


class _Transport(MemoryTransport):
    """A connection to a stranger who takes all that is sent."""

    def close(self) -> None:
        self.abort()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self.aborted:
            super().write(data)

    def pause_reading(self) -> None:
        """Do nothing: everything has arrived already."""

    def resume_reading(self) -> None:
        """Do nothing: everything has arrived already."""

    def write_eof(self) -> None:
        """Nobody waits for it."""

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits to be written."""


def _framed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _encoded(message: Any) -> bytes:
    return _framed(json.dumps(message).encode())


async def _converse(kind: type[Connection], stream: bytes) -> bytes:
    """Let a stranger send this to a daemon with somebody else on it; return what the daemon sent to that one."""
    daemon = Daemon(Config(tcp=None, ws=None, unix=None, binary=None, binary_unix=None))
    witness, transport = StreamConnection(daemon, "tcp"), _Transport()
    witness.connection_made(transport)
    witness.data_received(b"".join(map(_encoded, WITNESS)))
    await _turn()
    stranger = kind(daemon, "tcp")
    stranger.connection_made(_Transport())
    stranger.data_received(stream)
    await _turn()
    stranger.connection_lost(None)
    await _turn()
    witness.data_received(_encoded(AFTER))
    await _turn()
    sent = transport.written
    witness.connection_lost(None)
    await _turn()
    return sent


async def _turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def _send(kind: type[Connection], stream: bytes) -> None:
    complaints, log = _Complaints(), logging.getLogger()
    log.addHandler(complaints)
    try:
        sent = _runner().run(_converse(kind, stream))
    finally:
        log.removeHandler(complaints)
    if complaints.found:
        raise Found(complaints.found[0])
    messages = [json.loads(frame) for frame in frames_of(sent)]
    flat = [each for message in messages for each in (message if isinstance(message, list) else [message])]
    if {"id": "after", "result": AFTER["params"]} not in flat:
        raise Found(f"a peer beside the stranger gets no answer any more: {flat[-3:]}")


def send_frame(data: bytes) -> None:
    """One JSON frame; lines are frames of their own, so that one can follow another."""
    _send(StreamConnection, b"".join(map(_framed, data.split(b"\n"))))


def send_batch(data: bytes) -> None:
    """A batch whose members are the lines."""
    _send(StreamConnection, _framed(b"[" + b",".join(data.split(b"\n")) + b"]"))


def send_stream(data: bytes) -> None:
    """Bytes past the framing of TCP."""
    _send(StreamConnection, data)


def send_binary(data: bytes) -> None:
    """Messages of the binary protocol: each has a byte before it that says how long it is."""
    stream = bytearray()
    while data:
        message, data = data[1 : 1 + data[0]], data[1 + data[0] :]
        stream += struct.pack("<I", len(message)) + message
    _send(BinaryConnection, bytes(stream))


def shake_hands(data: bytes) -> None:
    """A handshake of WebSocket and what follows it."""
    _send(WebSocketConnection, data)


def compare_ways(data: bytes) -> None:
    """Messages of several peers, handled by the compiled lane and in Python: both do the same.

    Each line is a step. Its first byte says which peer sends, how long its turns are and where the message is cut.
    """
    steps: list[Step] = [("send", 0, framed(*LANE_SETUP), 1 << 40), ("send", 1, framed(LANE_FETCH), 1 << 40)]
    for line in data.split(b"\n"):
        first, message = line[:1], line[1:]
        number = ord(first) if first else 0
        if message:
            peer, looks, whole = number % 4, (number // 4) % 4, framed(message)
            cut = number * len(whole) // 256
            steps += [("send", peer, whole[:cut], looks), ("send", peer, whole[cut:], looks)]
        else:
            steps += [("pause", 1), ("flush",)] if number % 2 else [("resume", 1), ("flush",)]
    for record in ("", "rows"):
        compiled, plain = play(steps, record)
        if compiled != plain:
            raise Found(f"the lane and Python differ: {compiled} and {plain}")


LANE_SETUP = ['{"method":"add","params":{"path":"s","value":1}}', '{"method":"add","params":{"path":"m"}}']
LANE_FETCH = '{"method":"fetch","params":{"id":"f","path":{}}}'
VALUES = [None, True, 0, -1.5, "text", [1, "a"], {"a": {"b": [1, 2]}}]
PATHS = ["", "a", "a/b", "ä/€", "A/b/c"]


def read_rules(data: bytes) -> None:
    """Rules as peers send them and as users type them; written and read again they match the same."""
    text = data.decode(errors="replace")
    try:
        parsed = parse_rule(text)
    except (JetError, ValueError):
        parsed = None
    if parsed is not None:
        _match_all(parsed)
    try:
        params = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(params, dict):
        return
    try:
        rule = read_rule(params)
    except JetError:
        return
    again, _ = write_rule(rule)
    if _match_all(read_rule(again)) != _match_all(rule):
        raise Found(f"a rule changes when it is written: {params} to {again}")


def _match_all(rule: Rule) -> list[bool]:
    test = rule.matches_value
    return [
        *(rule.matches_path(path) for path in PATHS),
        *(test is None or bool(test(value)) for value in VALUES),
    ]


@cache
def _lua() -> Callable[[str, str], tuple[bool, bool]]:
    found: Callable[[str, str], tuple[bool, bool]] = LuaRuntime().eval(
        "function(s, p) local ok, found = pcall(string.match, s, p) return ok, ok and found ~= nil end"
    )
    return found


def match_patterns(data: bytes) -> None:
    """A Lua pattern in the first line, a text in the second: the answer is that of a real Lua."""
    pattern, _, subject = data.decode("latin-1").partition("\n")
    if not (pattern + subject).isascii() or "\0" in pattern + subject:
        return
    pattern, subject = pattern[:PATTERN_CHARS], subject[:SUBJECT_CHARS]
    try:
        found = lua_matcher(pattern)(subject)
    except ValueError:
        return
    ok, lua_found = _lua()(subject, pattern)
    if (ok, lua_found) != (True, found):
        raise Found(f"pattern {pattern!r} on {subject!r}: {found}, Lua says {lua_found if ok else 'malformed'}")


@cache
def _sound_journal() -> dict[str, bytes]:
    """The files of a small journal that was closed."""
    with tempfile.TemporaryDirectory() as folder:
        with journal.Writer(Path(folder)) as writer:
            writer.append("start", detail=b'{"version":"1"}')
            for number in range(3):
                writer.append("add", "state", f"plant/{number}", b"1", "pump#1", b"{}")
                writer.change(f"plant/{number}", b'{"a":[1,2]}', "pump#1")
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def read_journal(data: bytes) -> None:
    """A journal with bytes that have changed: 4 bytes say which file and where, the next ones are written there."""
    files = {name: bytearray(content) for name, content in _sound_journal().items()}
    names = list(files)
    while len(data) > 4:
        content = files[names[data[0] % len(names)]]
        at, count = int.from_bytes(data[1:3], "big") % (len(content) + 1), data[3] % 16
        if count == 15:
            del content[at:]
        else:
            content[at : at + count] = data[4 : 4 + count]
        data = data[4 + count :]
    folder = Path(tempfile.mkdtemp())
    try:
        for name, changed in files.items():
            (folder / name).write_bytes(changed)
        try:
            journal.verify(folder)
            log = journal.open(folder)
            log.table()
            log.as_of("now")
        except JournalError:
            pass
    finally:
        shutil.rmtree(folder)


TARGETS: dict[str, Target] = {
    "frames": send_frame,
    "batches": send_batch,
    "streams": send_stream,
    "binary": send_binary,
    "handshakes": shake_hands,
    "lanes": compare_ways,
    "rules": read_rules,
    "patterns": match_patterns,
    "journals": read_journal,
}
