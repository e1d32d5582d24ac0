"""The real command `jet`, run in a pipe and in a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import pytest

from support.forks import Forks

FORKS = Forks()
DEADLINE_S = 60.0
WORKERS = 3
"""How many commands are run at a time where many are."""
DAEMON = ["daemon", "--tcp", "127.0.0.1:0"] + [
    word for listener in ("ws", "unix", "binary", "binary-unix") for word in (f"--{listener}", "off")
]
"""A daemon of the command's own, at a free port and nowhere else."""


def chosen(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """The values of a parameter that the tests of this run have: who asks for one test need not wait for all."""
    specs = [
        item.callspec
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    ]
    return [spec.params[parameter] for spec in specs if parameter in spec.params]


class Done(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Jet:
    """Runs `jet` against one bus, with a folder for its settings and for the files of examples."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("jet", "jetcat", "jetget", "jetset", "jetexec", "jetinfo", "jetstate", "jetmethod"):
            script = programs / name
            word = "" if name == "jet" else f" {name}"
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jetbus.cli{word} "$@"\n')
            script.chmod(0o755)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("JET_", "NO_COLOR", "COLUMNS"))
        }
        self.environment = {
            **kept,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TERM": "xterm-256color",
        }
        if url:
            self.environment["JET_URL"] = url

    def __call__(self, *words: str, stdin: str | bytes = b"", **environment: str) -> Done:
        """Run a command to its end."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        ended = FORKS.run(list(words), data, str(self.folder), {**self.environment, **environment}, DEADLINE_S)
        return Done(ended.code, ended.out.decode(errors="replace"), ended.err.decode(errors="replace"))

    def shell(self, line: str, stdin: str | bytes = b"", **environment: str) -> Done:
        """Run a line as the shell does; without a shell, where it only is a command."""
        words = _words(line)
        if words is not None:
            return self(*words, stdin=stdin, **environment)
        return self.run_command(["/bin/sh", "-c", line], stdin, environment)

    def run_command(
        self, command: list[str], stdin: str | bytes, environment: dict[str, str], within_s: float = DEADLINE_S
    ) -> Done:
        ran = subprocess.run(
            command,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env={**self.environment, **environment},
            cwd=self.folder,
            timeout=within_s,
            check=False,
        )
        return Done(ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace"))

    def start(self, *words: str) -> Running:
        """Start a command that stays."""
        return Running(
            subprocess.Popen(
                [sys.executable, "-m", "jetbus.cli", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment,
                cwd=self.folder,
            )
        )

    def terminal(self, *words: str, columns: int = 80, **environment: str) -> Terminal:
        """Start a command in a pseudo-terminal."""
        command = [sys.executable, "-m", "jetbus.cli", *words]
        return Terminal(command, {**self.environment, **environment}, columns, self.folder)


def _words(line: str) -> list[str] | None:
    """The words after `jet` in a line that needs no shell; None if it does."""
    line = re.sub(r"\s+# .*$", "", line)
    if not line.startswith("jet ") or any(char in line for char in "$`#\\"):
        return None
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    tokens = list(lexer)
    plain = shlex.split(line)
    return plain[1:] if tokens == plain and not any(set(token) <= set("();<>|&") for token in tokens) else None


class Running:
    """A command that runs, in pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def line(self) -> str:
        """Its next line on stdout."""
        assert self.process.stdout is not None
        return _line(self.process.stdout)

    def complaint(self) -> str:
        """Its next line on stderr."""
        assert self.process.stderr is not None
        return _line(self.process.stderr)

    def interrupt(self) -> Done:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> Done:
        """Wait for its end; what it wrote since is given."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return Done(self.process.returncode, out.decode(), err.decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _line(pipe: IO[bytes]) -> str:
    """A line, byte by byte so that nothing is taken away from a later read."""
    deadline, line = time.monotonic() + DEADLINE_S, b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"no line within {DEADLINE_S} s, only {line!r}"
        byte = os.read(pipe.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode().rstrip("\n")


class Terminal:
    """A command that runs in a pseudo-terminal; what it prints and complains comes together."""

    def __init__(self, command: list[str], environment: dict[str, str], columns: int, folder: Path) -> None:
        self._descriptor, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            cwd=folder,
            start_new_session=True,
            preexec_fn=_own_it,
        )
        os.close(inner)
        self.text = ""

    def until(self, wanted: str) -> str:
        """Read until it has printed something."""
        deadline = time.monotonic() + DEADLINE_S
        while wanted not in self.text:
            assert self._read(deadline), f"it ended without {wanted!r}: {self.text!r}"
        return self.text

    def press(self, text: str) -> None:
        """Press keys; \\x03 is Ctrl-C."""
        os.write(self._descriptor, text.encode())

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code and all it has printed."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            pass
        return self.process.wait(DEADLINE_S), self.text.replace("\r\n", "\n")

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"nothing within {DEADLINE_S} s after {self.text!r}"
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False  # the last one has closed the terminal
        self.text += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._descriptor)


def _own_it() -> None:
    """Make the terminal the one that Ctrl-C comes from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def completed(jet: Jet, *words: str, **environment: str) -> list[str]:
    """Return the completions that bash offers after these words."""
    line = " ".join(["jet", *words])
    done = jet.shell("jet", COMP_WORDS=line, COMP_CWORD=str(len(words)), _JET_COMPLETE="bash_complete", **environment)
    assert done.err == ""
    return [offer.partition(",")[2] for offer in done.out.split()]
