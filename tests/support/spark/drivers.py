"""The pipeline as a process of its own, with a Java machine below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from support.spark.machines import FOR_FEW_ROWS, environment

WAITING = """
import sys
from jetbus.spark import session
from jetbus.cli.main import main
session("local[1]")
if sys.stdin.readline():
    main(sys.argv[1:])
"""
"""``python -m jetbus.cli`` with a Spark that is up already and waits for a line to begin."""


def start(
    journals: Sequence[str],
    tables: Path,
    *options: str,
    waits: bool = False,
    told: bool = False,
    settings: Mapping[str, str] = FOR_FEW_ROWS,
) -> subprocess.Popen[str]:
    """Start a pipeline over these journals, in a process group of its own; one that ``waits`` begins with ``begin``.

    Its stderr is for the one who starts it if that is to be ``told``.
    """
    words = ["pipeline", "run", *(word for journal in journals for word in ("--journal", journal))]
    program = ("-c", WAITING) if waits else ("-m", "jetbus.cli")
    return subprocess.Popen(
        [sys.executable, *program, *words, "--tables", str(tables), "--master", "local[1]", *options],
        stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if told else None,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment(settings)},
    )


def begin(process: subprocess.Popen[str]) -> None:
    """Let a driver that waits begin; one that has ended does not."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()


def kill(process: subprocess.Popen[str]) -> None:
    """End the driver and its Java machine at once, as a power cut would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
