"""Daemons of strangers: the command does not wait for them longer than it was told, and says what they sent."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.jet import Jet

LENGTH = struct.Struct(">I")
INFO = {"name": "jetbus", "version": "1", "protocolVersion": "1.0.0", "features": {}}
DEEP = b"[" * 1_000_000 + b"]" * 1_000_000

Answer = Callable[[Any], bytes | None]


class Stranger:
    """A program that introduces itself as a daemon, and answers requests as a test wants it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"jet://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        introduced = False
        with contextlib.suppress(OSError), sock, sock.makefile("rb") as file:
            while head := file.read(LENGTH.size):
                message = json.loads(file.read(*LENGTH.unpack(head)))
                for request in message if isinstance(message, list) else [message]:
                    if "id" not in request:
                        continue
                    result: bytes | None = b"true"
                    if request["method"] == "info" and not introduced:
                        introduced, result = True, json.dumps(INFO).encode()
                    elif request["method"] not in ("config", "configure"):
                        result = self._answer(request)
                    if result is not None:
                        data = b'{"id":%s,"result":%s}' % (json.dumps(request["id"]).encode(), result)
                        sock.sendall(LENGTH.pack(len(data)) + data)


@pytest.fixture
def start_stranger() -> Iterator[Callable[[Answer], Stranger]]:
    strangers: list[Stranger] = []

    def start(answer: Answer) -> Stranger:
        strangers.append(Stranger(answer))
        return strangers[-1]

    yield start
    for stranger in strangers:
        stranger.close()


DEEP_ANSWERS = {"deep answer": DEEP, "deep value": b'[{"path":"a","value":%s}]' % DEEP}


@pytest.mark.parametrize("answer", DEEP_ANSWERS.values(), ids=DEEP_ANSWERS)
def test_deep_answer(start_stranger: Callable[[Answer], Stranger], tmp_path: Path, answer: bytes) -> None:
    """An answer that is nested too deeply to be read ends the command, which does not wait for another one."""
    stranger = start_stranger(lambda _request: answer)
    code, out, err = Jet(stranger.url, tmp_path)("get", "a")
    assert (code, out) == (1, "")
    assert f"{stranger.url} sent what is not a Jet message" in err
    assert len(err) < 1000


@pytest.mark.parametrize("answer", [b"true", b"[5]", b'[{"path":7}]', b'{"path":"a"}'], ids=bytes.decode)
@pytest.mark.parametrize("words", [("get", "**"), ("ls",), ("tree",)], ids=lambda words: words[0])
def test_no_list(
    start_stranger: Callable[[Answer], Stranger], tmp_path: Path, words: tuple[str, ...], answer: bytes
) -> None:
    """A daemon that answers with anything but a list of elements is named; that is not a bug in jet."""
    stranger = start_stranger(lambda _request: answer)
    code, out, err = Jet(stranger.url, tmp_path)(*words)
    assert (code, out) == (1, "")
    assert f"{stranger.url} answered without a list of elements; is that a Jet daemon?" in err


@pytest.mark.parametrize("words", [("watch",), ("top",), ("hz",)], ids=lambda words: words[0])
def test_no_answer(start_stranger: Callable[[Answer], Stranger], tmp_path: Path, words: tuple[str, ...]) -> None:
    """--for ends a command also if the daemon has never answered."""
    stranger = start_stranger(lambda _request: None)
    code, _, err = Jet(stranger.url, tmp_path)(*words, "--for", "200ms")
    assert (code, err) == (0, "")


@pytest.mark.parametrize("form", ["value", "csv"])
def test_escapes_reach_no_terminal(start_stranger: Callable[[Answer], Stranger], tmp_path: Path, form: str) -> None:
    """Control characters of a value are escaped on a terminal and left alone in a pipe; line breaks stay."""
    stranger = start_stranger(lambda _request: json.dumps([{"path": "a", "value": "red\x1b[31m\nnext"}]).encode())
    jet = Jet(stranger.url, tmp_path)
    assert "\x1b[31m" in jet("get", "**", "-o", form).out
    with jet.terminal("get", "**", "-o", form) as terminal:
        _, shown = terminal.end()
    assert "red\\x1b[31m" in shown
    assert "\x1b[31m" not in shown
    assert "\nnext" in shown.replace("\r", "")
