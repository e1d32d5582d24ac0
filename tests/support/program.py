"""A program that runs beside a test, in pipes: its lines as they come, what it is told, its end."""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 30.0


class Program:
    """A running program; when the block is left it has ended."""

    deadline_s = DEADLINE_S

    def __init__(self, *command: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self, within_s: float | None = None) -> str | None:
        """The next line, None at the end."""
        return self._lines.get(timeout=self.deadline_s if within_s is None else within_s)

    def lines_to(self, pattern: str) -> list[str]:
        """The lines up to the first in which the pattern is found."""
        lines = []
        while (line := self.line()) is not None:
            lines.append(line)
            if re.search(pattern, line):
                return lines
        raise AssertionError(f"no {pattern!r} in {lines}")

    def say(self, line: str) -> None:
        """Type a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end: exit code and what went to stderr, which is never a traceback."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        error = self.process.stderr.read()
        assert "Traceback" not in error, error
        return self.process.wait(self.deadline_s), error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.deadline_s)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(self.deadline_s)
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was said to a program that has ended
                        pipe.close()


def example(name: str, *words: str) -> Program:
    """An example, run with the command that a newcomer types."""
    return Program(sys.executable, str(EXAMPLES / f"{name}.py"), *words, folder=ROOT)
