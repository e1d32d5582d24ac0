"""``jet add``: own a state from the shell."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import click

from jetbus.cli.arguments import read_value
from jetbus.cli.command import DURATION, Example, command
from jetbus.cli.exit_codes import Failure, print_message, usage_error
from jetbus.cli.output import Output
from jetbus.cli.streams import Ending, now, open_peer, run, run_until_end
from jetbus.cli.target import Target
from jetbus.json_types import Json, JsonObject
from jetbus.peer import Event


@command(
    examples=[
        Example("jet add lab/lamp '\"off\"' --for 1s", "own a state that others may set, for one second"),
        Example("seq 3 | jet add lab/count -", "publish each line of a program as a new value"),
    ],
    stream=True,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("path")
@click.argument("value")
@click.option("--read-only", is_flag=True, help="refuse all sets")
@click.option("--string", "-s", is_flag=True, help="take VALUE, or each line, as text instead of JSON")
@click.option("--access", metavar="JSON", help='groups that may use it, such as {"setGroups": ["staff"]}')
@click.option("--unit", metavar="UNIT", help="unit of the value, such as rpm")
@click.option("--min", "minimum", metavar="NUMBER", type=float, help="least value")
@click.option("--max", "maximum", metavar="NUMBER", type=float, help="greatest value")
@click.option("--normal", metavar="LOW,HIGH", help="range in which nothing is wrong, such as 200,2800")
@click.option("--enum", metavar="JSON", help='allowed values, such as ["auto", "off"]')
@click.option("--title", metavar="TEXT", help="name for people")
@click.option("--description", metavar="TEXT", help="what it is, in a sentence")
@click.option("--stale", "stale_s", type=DURATION, metavar="DURATION", help="time without a change until it is stale")
@click.option(
    "--buffer", metavar="memory|DIR", help="keep each value until it is recorded, and send it later if it must be"
)
@click.option("--check", is_flag=True, help="let the daemon refuse values that do not fit")
def add(
    bus: Target,
    form: str | None,
    ending: Ending,
    path: str,
    value: str,
    read_only: bool,
    string: bool,
    access: str | None,
    buffer: str | None,
    **said: Any,
) -> int:
    """Own the state at PATH until Ctrl-C, and print each value that others set.

    If VALUE is -, each line of stdin becomes a new value, and the state is read-only. The state is removed when the
    command ends. --unit, --min and the others describe the state to those who ask, such as `jet describe` and Radar;
    with --check the daemon refuses values that do not fit. With --buffer the values from before the connection was lost
    and until it is back are recorded, too: in a directory they also survive the end of the command.
    """
    options = {"access": None if access is None else read_value(access), **_read_description(said)}
    first = None if value == "-" else read_value(value, string=string)
    with Output(("ts", "event", "path", "value"), form, stream=True) as out:
        if value == "-":
            code: int = run(_feed(bus, path, string, options, buffer, ending))
        else:
            code = run(_own(bus, path, first, read_only, options, buffer, out, ending))
    return code


def _read_description(said: dict[str, Any]) -> dict[str, Any]:
    """Return the options that describe a state, as ``add_state`` takes them."""
    # Flags that are not given are False; a schema leaves them out.
    described = {name: value for name, value in said.items() if value is not None and value is not False}
    for name in ("minimum", "maximum"):
        # click reads 3000 as 3000.0, which is not how a person would write the range.
        if name in described and described[name].is_integer():
            described[name] = int(described[name])
    if "enum" in described:
        described["enum"] = read_value(described["enum"])
    if "normal" in described:
        low, _, high = described["normal"].partition(",")
        try:
            # A range may be open at one end, as in 200, or ,2800.
            described["normal"] = tuple(float(end) if end.strip() else None for end in (low, high))
        except ValueError:
            raise usage_error(
                f"--normal {said['normal']} is not a range; write two numbers, such as 200,2800"
            ) from None
    return described


async def _own(
    bus: Target,
    path: str,
    value: Json,
    read_only: bool,
    options: JsonObject,
    buffer: str | None,
    out: Output,
    ending: Ending,
) -> int:
    async with open_peer(bus, buffer=buffer) as peer:
        ended = asyncio.Event()

        def on_set(requested: Json) -> None:
            with contextlib.suppress(BrokenPipeError):  # a missing reader is detected elsewhere, and ends the command
                out.put({"ts": now(), "event": "set", "path": path, "value": requested})
            if ending.record_event(Event("change", path, requested)):
                ended.set()

        await peer.add_state(path, value, on_set=None if read_only else on_set, **options)
        if sys.stderr.isatty():
            print_message(f"{path} is on the bus; Ctrl-C removes it")

        async def stay() -> None:
            await ended.wait()
            await asyncio.sleep(0)  # let the response to the last set be sent first

        return await run_until_end(stay(), ending)


async def _feed(
    bus: Target, path: str, string: bool, options: dict[str, Any], buffer: str | None, ending: Ending
) -> int:
    async with open_peer(bus, buffer=buffer) as peer:

        async def feed() -> None:
            state = None
            async for line in _read_lines():
                if not line.strip() and not string:
                    continue
                value = read_value(line, string=string)
                # Added with its first value: before there is one, others would see null.
                if state is None:
                    state = await peer.add_state(path, value, **options)
                else:
                    state.change(value)
                if ending.record_event(Event("change", path, value)):
                    return
            if state is None:
                raise Failure(f"stdin had no value for {path}; write one value per line")

        return await run_until_end(feed(), ending)


async def _read_lines() -> AsyncIterator[str]:
    """Yield the lines of stdin. A thread reads them, since not every kind of stdin works with an event loop."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    # Bounds the lines that wait in the queue, however fast the program writes.
    room = threading.Semaphore(1000)

    def tell(line: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed already
            loop.call_soon_threadsafe(queue.put_nowait, line)

    def read() -> None:
        try:
            for line in sys.stdin:
                room.acquire()
                tell(line.rstrip("\r\n"))
        # Stdin was closed, or is not text. Either is its end.
        except (OSError, ValueError):
            pass
        tell(None)

    # A daemon thread, because a read of stdin cannot be interrupted at the end.
    threading.Thread(target=read, name="jet-stdin", daemon=True).start()
    while (line := await queue.get()) is not None:
        room.release()
        yield line
