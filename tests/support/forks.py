"""Processes for commands, quickly: one process has loaded what commands need, and forks for each of them.

Each command is a process of its own, in pipes, with a folder and an environment of its own, and ends as the program
does. Only the loading is shared; what a command loads by itself is tested by test_startup.py, in fresh processes.
Run as a program this is the process that forks: it reads requests from stdin, a JSON line each, and answers likewise.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import time
from typing import NamedTuple

LOADED = ("get", "set", "call", "ls", "watch", "bridge", "access", "context", "user", "doctor")
PAST = ("at", "diff", "history", "journal", "record", "replay")
"""Commands that need Arrow: to fork a process that has it loaded costs more than all of the others do."""
PYTHON = [sys.executable, __file__]


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: bytes
    err: bytes


class Forks:
    """Processes that fork, each for one command at a time; as many as are used at once, with Arrow and without."""

    def __init__(self) -> None:
        self._idle: dict[bool, queue.SimpleQueue[subprocess.Popen[bytes]]] = {
            past: queue.SimpleQueue() for past in (False, True)
        }

    def run(self, words: list[str], stdin: bytes, folder: str, environment: dict[str, str], within_s: float) -> Ended:
        """Run `jet` with these words to its end."""
        past = any(word in PAST for word in words)
        try:
            forking = self._idle[past].get_nowait()
        except queue.Empty:
            command = [*PYTHON, *(["past"] if past else [])]
            forking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_own(environment))
        assert forking.stdin is not None
        assert forking.stdout is not None
        asked = [words, base64.b64encode(stdin).decode(), folder, environment, within_s]
        forking.stdin.write(json.dumps(asked).encode() + b"\n")
        forking.stdin.flush()
        code, out, err = json.loads(forking.stdout.readline())
        self._idle[past].put(forking)
        return Ended(code, base64.b64decode(out), base64.b64decode(err))

    def close(self) -> None:
        """End them."""
        for idle in self._idle.values():
            while not idle.empty():
                idle.get_nowait().communicate()


def _own(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("JET_")}


def _answer(words: list[str], stdin: bytes, folder: str, environment: dict[str, str], within_s: float) -> Ended:
    """Fork, and read what the command writes until it has ended."""
    given, out, err = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        _become(words, folder, environment, (given, out, err))
    for unused in (given[0], out[1], err[1]):
        os.close(unused)
    written: dict[int, bytes] = {out[0]: b"", err[0]: b""}
    deadline = time.monotonic() + within_s
    with selectors.DefaultSelector() as selector:
        for descriptor in written:
            selector.register(descriptor, selectors.EVENT_READ)
        selector.register(given[1], selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if key.fd == given[1]:
                    stdin = _feed(key.fd, stdin)
                    done = not stdin
                else:
                    data = os.read(key.fd, 65536)
                    written[key.fd] += data
                    done = not data
                if done:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), written[out[0]], written[err[0]])


def _feed(descriptor: int, data: bytes) -> bytes:
    try:
        return data[os.write(descriptor, data[:4096]) :] if data else b""
    except BrokenPipeError:
        return b""


def _become(words: list[str], folder: str, environment: dict[str, str], pipes: tuple[tuple[int, int], ...]) -> None:
    """Be the command, to its end."""
    code = 70
    try:
        for number, pipe in enumerate(pipes):
            os.dup2(pipe[0 if number == 0 else 1], number)
        os.closerange(3, 64)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as a fresh process has them
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["jet", *words]
        from jetbus.cli.main import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        sys.stderr.flush()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _serve(past: bool) -> None:
    import importlib

    for name in ("cli.main", "peer.simple", "peer.aio", *(f"cli.commands.{name}" for name in LOADED)):
        importlib.import_module(f"jetbus.{name}")
    if past:
        for name in ("journal.reader", *(f"cli.commands.{name}" for name in PAST)):
            importlib.import_module(f"jetbus.{name}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # what is loaded is shared by all commands: no collection may touch it
    for line in sys.stdin:
        words, stdin, folder, environment, within_s = json.loads(line)
        code, out, err = _answer(words, base64.b64decode(stdin), folder, environment, within_s)
        received = [code, base64.b64encode(out).decode(), base64.b64encode(err).decode()]
        os.write(1, json.dumps(received).encode() + b"\n")


if __name__ == "__main__":
    _serve("past" in sys.argv)
