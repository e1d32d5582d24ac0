"""``jet add``: own a state from the shell."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Failure, complain
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
from jetbus.cli.streams import Ending, now, run, staying, until_end
from jetbus.cli.values import read_value
from jetbus.peer import Event


@command(
    examples=[
        Example("jet add lab/lamp '\"off\"' --for 1s", "own a state that everybody may set, for a second"),
        Example("seq 3 | jet add lab/count -", "each line of a program is a new value; its end is the state's end"),
    ],
    stream=True,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("path")
@click.argument("value")
@click.option("--read-only", is_flag=True, help="nobody may set it")
@click.option("--string", "-s", is_flag=True, help="VALUE, or each line, is text, not JSON")
@click.option("--access", metavar="JSON", help='who may use it, such as {"setGroups": ["staff"]}')
def add(
    bus: Bus, form: str | None, ending: Ending, path: str, value: str, read_only: bool, string: bool, access: str | None
) -> int:
    """Own the state at PATH until Ctrl-C, and print each value that others set.

    With - as VALUE each line of stdin is a new value, and nobody else may set it. When jet ends, the state is gone.
    """
    options = {"access": None if access is None else read_value(access)}
    first = None if value == "-" else read_value(value, string=string)
    with Output(("at", "event", "path", "value"), form, stream=True) as out:
        if value == "-":
            code: int = run(_feed(bus, path, string, options, ending))
        else:
            code = run(_own(bus, path, first, read_only, options, out, ending))
    return code


async def _own(
    bus: Bus, path: str, value: Any, read_only: bool, options: dict[str, Any], out: Output, ending: Ending
) -> int:
    async with staying(bus) as peer:
        ended = asyncio.Event()

        def on_set(asked: Any) -> None:
            with contextlib.suppress(BrokenPipeError):  # that nobody reads is found out elsewhere, and ends it
                out.put({"at": now(), "event": "set", "path": path, "value": asked})
            if ending.sees(Event("change", path, asked)):
                ended.set()

        await peer.add_state(path, value, on_set=None if read_only else on_set, **options)
        if sys.stderr.isatty():
            complain(f"{path} is on the bus; Ctrl-C takes it off")

        async def stay() -> None:
            await ended.wait()
            await asyncio.sleep(0)  # the answer to the last set goes out first

        return await until_end(stay(), ending)


async def _feed(bus: Bus, path: str, string: bool, options: dict[str, Any], ending: Ending) -> int:
    async with staying(bus) as peer:

        async def feed() -> None:
            state = None
            async for line in _lines():
                if not line.strip() and not string:
                    continue
                value = read_value(line, string=string)
                if state is None:
                    state = await peer.add_state(path, value, **options)
                else:
                    state.change(value)
                if ending.sees(Event("change", path, value)):
                    return
            if state is None:
                raise Failure(f"stdin had no value for {path}; give it one value a line")

        return await until_end(feed(), ending)


async def _lines() -> AsyncIterator[str]:
    """The lines of stdin as they come; a thread waits for them, since stdin may be anything."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    room = threading.Semaphore(1000)

    def tell(line: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(queue.put_nowait, line)

    def read() -> None:
        try:
            for line in sys.stdin:
                room.acquire()
                tell(line.rstrip("\r\n"))
        except (OSError, ValueError):
            pass
        tell(None)

    threading.Thread(target=read, name="jet-stdin", daemon=True).start()
    while (line := await queue.get()) is not None:
        room.release()
        yield line
