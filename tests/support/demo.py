"""The real `jet demo`, in a pipe or in a terminal, and what it must not leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from support.jet import Terminal
from support.program import Program

DEADLINE_S = 120.0
READY = "In another terminal:"
HOME = "\x1b[H"
"""Where each picture of a screen begins."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Environment of the demo: no buses of this machine, and temporary folders of the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JET_", "NO_COLOR", "COLUMNS"))}
    own = {"XDG_CONFIG_HOME": str(folder / "config"), "TMPDIR": str(folder), "TERM": "xterm-256color"}
    return {**kept, **own, **more}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "jetbus.cli", "demo", *words]


class Lines(Program):
    """A demo in a pipe: its lines as they come."""

    deadline_s = DEADLINE_S

    def __init__(self, folder: Path, *words: str, within: Sequence[str] = (), **more: str) -> None:
        """Start it with these words and settings, by the command ``within`` if one is given."""
        self.folder = folder
        self.environment = environment(folder, **more)
        self.said: list[str] = []
        super().__init__(*within, *command(*words), environment=self.environment)

    def until(self, pattern: str, within_s: float = DEADLINE_S) -> str:
        """The first line in which the pattern is found, of all that were said."""
        deadline, at = time.monotonic() + within_s, 0
        while True:
            for line in self.said[at:]:
                if re.search(pattern, line):
                    return line
            at = len(self.said)
            line_or_end = self.line(max(0.0, deadline - time.monotonic()))
            assert line_or_end is not None, f"no {pattern!r} in {self.said}, {self.complaints()}"
            self.said.append(line_or_end)

    def complaints(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    @property
    def url(self) -> str:
        found = re.search(r"jet://\S+:\d+", self.until(READY))
        assert found
        return found[0]

    def tips(self) -> list[str]:
        """Return the suggested commands that it has printed so far."""
        return [line.partition("   #")[0].strip() for line in self.said if line.startswith("  ")]

    def typed(self, line: str) -> subprocess.Popen[str]:
        """Type a line in another terminal of the same user."""
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {line}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            text=True,
        )

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Wait for its end, after a signal if one is given: exit code and what it complained."""
        if number is not None:
            self.process.send_signal(number)
        while (line := self.line()) is not None:
            self.said.append(line)
        return super().end()


class Screen(Terminal):
    """A demo in a pseudo-terminal."""

    def __init__(self, folder: Path, *words: str, columns: int = 80, **more: str) -> None:
        super().__init__(command(*words), environment(folder, **more), columns, folder)

    def frame(self) -> list[str]:
        """The lines of the last picture that is complete."""
        pictures = self.text.split(HOME)
        found = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", pictures[-2] if len(pictures) > 2 else pictures[-1])
        return [line.rstrip() for line in found.replace("\r\n", "\n").split("\n")]

    def resized(self, rows: int, columns: int) -> list[str]:
        """The next picture after the window was given another size."""
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.text = ""
        while self.text.count(HOME) < 3:  # one may have been on its way already
            assert self._read(time.monotonic() + DEADLINE_S)
        return self.frame()

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._descriptor)
        self._descriptor = os.open(os.devnull, os.O_RDONLY)


def left_behind(folder: Path) -> tuple[list[str], list[Path]]:
    """Processes of demos below a folder that still run when they had time to end, and what is still in the folder."""
    deadline = time.monotonic() + DEADLINE_S
    while (processes := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes, [entry for entry in folder.iterdir() if entry.name != "config"]


def processes_of(folder: Path) -> list[str]:
    """Processes, zombies left out, that have a folder in their command line or live below it."""
    found, text = [], str(folder)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if words and process.name != str(os.getpid()) and text in f"{words} {(process / 'cwd').readlink()}":
                found.append(f"{process.name} {words}")
    return found
