"""``jet method``: serve a method with a program.

    call --> wait for a turn --> /bin/sh -c CMD, in a session of its own --> result, or refusal
                                    stdin   the arguments as JSON, from a file
                                    stdout  the result, at most TEXT_BYTES_MAX
                                    stderr  the reason, if the exit code is not 0

Calls come from strangers, so all of it is bounded: the number of programs, their time and their output. A program that
exceeds its bounds is killed with its children, which is why it has a session of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from typing import Any

import click

from jetbus.cli.arguments import read_value
from jetbus.cli.command import DURATION, Example, command
from jetbus.cli.exit_codes import Failure, print_message
from jetbus.cli.output import Output, encode_json, format_bare
from jetbus.cli.streams import Ending, now, open_peer, run, run_until_end
from jetbus.cli.target import Target
from jetbus.errors import Refused
from jetbus.json_types import Json, JsonObject

PROGRAMS_MAX = 16
"""Programs that run at the same time; further calls wait."""
TEXT_BYTES_MAX = 1 << 20
"""Maximum output of a program."""


@command(
    examples=[
        Example(
            "jet method lab/date --exec 'date +%F' --string --for 1s", "the output of a program is the result, as text"
        ),
        Example("jet method lab/sum --exec 'echo $(($1 + $2))' --for 1s", "positional arguments are $1, $2, ..."),
    ],
    stream=True,
)
@click.argument("path")
@click.option("--exec", "program", required=True, metavar="CMD", help="shell command to run for each call")
@click.option("--string", "-s", is_flag=True, help="take the output as text instead of JSON")
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default=5.0,
    show_default="5s",
    metavar="DURATION",
    help="time limit for CMD",
)
@click.option("--access", metavar="JSON", help='groups that may use it, such as {"callGroups": ["staff"]}')
def method(
    bus: Target,
    form: str | None,
    ending: Ending,
    path: str,
    program: str,
    string: bool,
    timeout_s: float,
    access: str | None,
) -> int:
    """Own the method at PATH until Ctrl-C, and run CMD for each call.

    CMD receives the arguments as JSON on stdin, and positional ones also as $1, $2, ... Its output is the result. If
    its exit code is not 0, the call is refused with the text that it wrote to stderr.
    """
    # The daemon waits longer than the program may run, so that the caller gets the message from here.
    options = {"access": None if access is None else read_value(access), "timeout_s": timeout_s + 1.0}
    with Output(("ts", "path", "args", "result", "problem"), form, stream=True, value="result") as out:
        code: int = run(_serve(bus, path, Program(program, string, timeout_s), options, out, ending))
    return code


class Program:
    """Shell command that answers calls."""

    def __init__(self, line: str, string: bool, timeout_s: float) -> None:
        self._line = line
        self._string = string
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(PROGRAMS_MAX)

    async def answer(self, args: Json) -> Json:
        """Run the command with the arguments of a call, and return its result."""
        async with self._turns:
            words = [format_bare(arg) for arg in args] if isinstance(args, list) else []
            with tempfile.TemporaryFile() as stdin:  # not a pipe, which a program that never reads it would break
                stdin.write(encode_json(args).encode() + b"\n")
                stdin.seek(0)
                process = await asyncio.create_subprocess_exec(
                    "/bin/sh",
                    # The shell takes the word behind its command as $0, and the next one as $1.
                    *("-c", self._line, "jet", *words),
                    stdin=stdin,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            try:
                async with asyncio.timeout(self._timeout_s):
                    # Both pipes at once: a program that fills the one while the other is read would never end.
                    text, problem = await asyncio.gather(_read_limited(process.stdout), _read_limited(process.stderr))
                    code = await process.wait()
            except TimeoutError:
                raise Refused(f"the program took longer than {self._timeout_s:g} s", code=-32001) from None
            finally:
                # Also if the call was cancelled, or the output is too long.
                _kill(process)
            return self._read(code, text, problem)

    def _read(self, code: int, text: bytes, problem: bytes) -> Json:
        if code:
            # The reason is at the end, where a long traceback has its error.
            message = problem.decode(errors="replace").strip()[-1000:]
            raise Refused(message or f"the program ended with exit code {code}", {"exitCode": code}, code=-32603)
        answer = text.decode(errors="replace").rstrip("\n")
        if not answer and not self._string:
            return None
        try:
            return read_value(answer, string=self._string)
        except Failure:
            raise Refused(
                "the output of the program is not JSON; serve the method with --string", code=-32603
            ) from None


async def _read_limited(pipe: asyncio.StreamReader | None) -> bytes:
    """Return the whole output of a program; refuse the call if it is too long."""
    text = b""
    while pipe is not None and (more := await pipe.read(1 << 16)):
        text += more
        if len(text) > TEXT_BYTES_MAX:
            raise Refused(f"the program printed more than {TEXT_BYTES_MAX} bytes", code=-32603)
    return text


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a program and its children."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _serve(bus: Target, path: str, program: Program, options: dict[str, Any], out: Output, ending: Ending) -> int:
    async with open_peer(bus) as peer:
        ended = asyncio.Event()

        async def called(*args: Json, **kwargs: Json) -> Json:
            arguments: Json = kwargs or list(args)
            record: JsonObject = {"ts": now(), "path": path, "args": arguments}
            try:
                record["result"] = await program.answer(arguments)
                return record["result"]
            except Refused as problem:
                record["problem"] = str(problem)
                raise
            finally:
                with contextlib.suppress(
                    BrokenPipeError
                ):  # a missing reader is detected elsewhere, and ends the command
                    out.put(record)
                if ending.record_event():
                    asyncio.get_running_loop().call_later(0.05, ended.set)  # let the response be sent first

        await peer.add_method(path, called, **options)
        if sys.stderr.isatty():
            print_message(f"{path} is on the bus; Ctrl-C removes it")
        return await run_until_end(ended.wait(), ending)
