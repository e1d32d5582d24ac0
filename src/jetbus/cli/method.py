"""``jet method``: serve a method with a program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Failure, complain
from jetbus.cli.frame import DURATION, Example, command
from jetbus.cli.output import Output
from jetbus.cli.streams import Ending, now, run, staying, until_end
from jetbus.cli.values import bare, read_value, shown
from jetbus.errors import Refused

PROGRAMS_MAX = 16
"""Calls beyond so many at once wait for their turn."""
TEXT_BYTES_MAX = 1 << 20
"""No program may answer with more."""


@command(
    examples=[
        Example("jet method lab/date --exec 'date +%F' --string --for 1s", "what it prints is the result, as text"),
        Example("jet method lab/sum --exec 'echo $(($1 + $2))' --for 1s", "positional arguments are $1, $2, ..."),
    ],
    stream=True,
)
@click.argument("path")
@click.option("--exec", "program", required=True, metavar="CMD", help="a command of the shell; it runs for each call")
@click.option("--string", "-s", is_flag=True, help="what it prints is text, not JSON")
@click.option(
    "--timeout", "timeout_s", type=DURATION, default=5.0, show_default="5s", metavar="DURATION", help="for CMD"
)
@click.option("--access", metavar="JSON", help='who may use it, such as {"callGroups": ["staff"]}')
def method(
    bus: Bus,
    form: str | None,
    ending: Ending,
    path: str,
    program: str,
    string: bool,
    timeout_s: float,
    access: str | None,
) -> int:
    """Own the method at PATH until Ctrl-C; CMD runs for each call.

    CMD gets the arguments as JSON on stdin, positional ones also as $1, $2, ... What it prints is the result. If its
    exit code is not 0 the call is refused with what it wrote to stderr.
    """
    options = {"access": None if access is None else read_value(access), "timeout_s": timeout_s + 1.0}
    with Output(("at", "path", "args", "result", "problem"), form, stream=True, value="result") as out:
        code: int = run(_serve(bus, path, Program(program, string, timeout_s), options, out, ending))
    return code


class Program:
    """A command of the shell that answers calls."""

    def __init__(self, line: str, string: bool, timeout_s: float) -> None:
        self._line = line
        self._string = string
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(PROGRAMS_MAX)

    async def answer(self, args: Any) -> Any:
        """Run it with these arguments."""
        async with self._turns:
            words = [bare(arg) for arg in args] if isinstance(args, list) else []
            with tempfile.TemporaryFile() as told:  # no pipe: a program that does not read it may end before it is fed
                told.write(shown(args).encode() + b"\n")
                told.seek(0)
                process = await asyncio.create_subprocess_exec(
                    "/bin/sh",
                    *("-c", self._line, "jet", *words),
                    stdin=told,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            try:
                async with asyncio.timeout(self._timeout_s):
                    text, problem = await asyncio.gather(_limited(process.stdout), _limited(process.stderr))
                    code = await process.wait()
            except TimeoutError:
                raise Refused(f"the program took more than {self._timeout_s:g} s", code=-32001) from None
            finally:
                _end(process)
            return self._read(code, text, problem)

    def _read(self, code: int, text: bytes, problem: bytes) -> Any:
        if code:
            said = problem.decode(errors="replace").strip()[-1000:]
            raise Refused(said or f"the program ended with exit code {code}", {"exitCode": code}, code=-32603)
        answer = text.decode(errors="replace").rstrip("\n")
        if not answer and not self._string:
            return None
        try:
            return read_value(answer, string=self._string)
        except Failure:
            raise Refused("what the program printed is not JSON; serve it with --string", code=-32603) from None


async def _limited(pipe: asyncio.StreamReader | None) -> bytes:
    """All that a program prints, unless it is too much."""
    text = b""
    while pipe is not None and (more := await pipe.read(1 << 16)):
        text += more
        if len(text) > TEXT_BYTES_MAX:
            raise Refused(f"the program printed more than {TEXT_BYTES_MAX} bytes", code=-32603)
    return text


def _end(process: asyncio.subprocess.Process) -> None:
    """End it with all it has started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _serve(bus: Bus, path: str, program: Program, options: dict[str, Any], out: Output, ending: Ending) -> int:
    async with staying(bus) as peer:
        ended = asyncio.Event()

        async def called(*args: Any, **kwargs: Any) -> Any:
            given: Any = kwargs or list(args)
            told: dict[str, Any] = {"at": now(), "path": path, "args": given}
            try:
                told["result"] = await program.answer(given)
                return told["result"]
            except Refused as problem:
                told["problem"] = str(problem)
                raise
            finally:
                with contextlib.suppress(BrokenPipeError):  # that nobody reads is found out elsewhere, and ends it
                    out.put(told)
                if ending.sees():
                    asyncio.get_running_loop().call_later(0.05, ended.set)  # the answer goes out first

        await peer.add_method(path, called, **options)
        if sys.stderr.isatty():
            complain(f"{path} is on the bus; Ctrl-C takes it off")
        return await until_end(ended.wait(), ending)
