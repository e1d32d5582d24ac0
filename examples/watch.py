"""Watch what is on a bus: every state and method below a prefix, as it comes, changes and goes.

python examples/watch.py plant/
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from rawpeer import Peer, command_line, run


async def watch(address: str, prefix: str, count: int | None) -> None:
    """Print events until `count` of them have come, or for ever."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    async with Peer(address, "watch") as peer:
        ended = asyncio.create_task(peer.ended())
        await peer.fetch("watch", {"path": {"startsWith": prefix}}, events.put_nowait)
        while count is None or count > 0:
            event = asyncio.create_task(events.get())
            await asyncio.wait((event, ended), return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                await ended
            print(line(event.result()), flush=events.empty())
            count = None if count is None else count - 1
        ended.cancel()


def line(event: dict[str, Any]) -> str:
    """One event as one line; a method has no value."""
    shown = json.dumps(event["value"], ensure_ascii=False) if "value" in event else "(method)"
    return f"{event['event']:<7} {event['path']:<32} {shown}"


def main() -> None:
    parser = command_line("Print add, change and remove events below a prefix until Ctrl-C.")
    parser.add_argument("prefix", nargs="?", default="", help="what paths start with; all when left out")
    parser.add_argument("--count", type=int, metavar="N", help="end after N events")
    given = parser.parse_args()
    run(watch(given.tcp, given.prefix, given.count))


if __name__ == "__main__":
    main()
