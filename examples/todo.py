"""A to-do list: a service with methods and a state per item, and a client that adds, ticks off and watches.

python examples/todo.py serve
python examples/todo.py add "buy milk"
python examples/todo.py watch
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
from dataclasses import dataclass, replace

import jetbus

ITEMS = "todo/items/"
NO_SUCH_ITEM = 1001


@dataclass(frozen=True)
class Item:
    """One thing to do."""

    title: str
    done: bool = False


async def serve() -> None:
    numbers = itertools.count(1)
    items: dict[int, jetbus.StateAsync] = {}

    def item(number: int) -> jetbus.StateAsync:
        if number not in items:
            raise jetbus.Refused(f"there is no item {number}", code=NO_SUCH_ITEM)
        return items[number]

    async with jetbus.PeerAsync(name="todo", wait=True) as peer:

        async def add(title: str) -> int:
            number = next(numbers)
            items[number] = await peer.add_state(f"{ITEMS}{number}", Item(title))
            return number

        def done(number: int) -> None:
            item(number).change(replace(item(number).value, done=True))

        async def remove(number: int) -> None:
            await item(number).remove()
            del items[number]

        for method in (add, done, remove):
            await peer.add_method(f"todo/{method.__name__}", method)
        print(f"to-do list at {peer.url}", flush=True)
        await asyncio.Event().wait()


async def watch() -> None:
    """Print the list, in order of title, whenever it is another one."""
    async with jetbus.PeerAsync() as peer:
        fetch = peer.fetch(starts_with=ITEMS, sort_by="value.title", sort_type="string", last=100, type=Item)
        async for entries in fetch:
            lines = [f"[{'x' if e.value.done else ' '}] {e.path.removeprefix(ITEMS)} {e.value.title}" for e in entries]
            print("\n".join([f"-- {len(entries)} to do", *lines]), flush=True)


def ask(method: str, argument: str) -> None:
    with jetbus.Peer() as peer:
        number = peer.call(f"todo/{method}", argument if method == "add" else int(argument))
        print(f"item {number}" if method == "add" else "ok")


def main() -> int:
    parser = argparse.ArgumentParser(description="A to-do list on the bus.")
    parser.add_argument("what", choices=["serve", "watch", "add", "done", "remove"])
    parser.add_argument("argument", nargs="?", default="0", help="title for add, number for done and remove")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end after so many seconds")
    args = parser.parse_args()
    if args.what in ("done", "remove") and not args.argument.isdigit():
        parser.error("done and remove take the number of an item")
    endless = {"serve": serve, "watch": watch}.get(args.what)
    try:
        if endless is None:
            ask(args.what, args.argument)
        else:
            with contextlib.suppress(TimeoutError):
                asyncio.run(asyncio.wait_for(endless(), args.seconds))
    except jetbus.JetError as problem:
        print(problem, file=sys.stderr)
        return 3 if isinstance(problem, jetbus.NotConnected) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
