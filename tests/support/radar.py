"""A Radar as a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.program import Program

JET = Path(sys.executable).with_name("jet")


@contextmanager
def serve_radar(url: str, *options: str) -> Iterator[str]:
    """Run ``jet radar`` for a bus and yield its address; it ends by Ctrl-C."""
    with run_radar(url, *options) as (address, program):
        yield address
        program.interrupt()


@contextmanager
def run_radar(url: str, *options: str) -> Iterator[tuple[str, Program]]:
    """Run ``jet radar`` for a bus and yield its address and the program."""
    command = (str(JET), "radar", "--url", url, "--listen", "127.0.0.1:0", "--no-open", "-o", "jsonl", *options)
    with Program(*command) as program:
        line = program.line()
        assert line is not None, program.end()
        yield json.loads(line)["address"], program
