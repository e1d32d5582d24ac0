"""Call a method and print its result.

python examples/call.py plant/start '[1, 2]'
"""

from __future__ import annotations

import json
from typing import Any

from rawpeer import Peer, command_line, read_json, run


async def call(address: str, path: str, args: Any) -> None:
    """Call and print the result as JSON."""
    async with Peer(address, "call") as peer:
        result = await peer.request("call", {"path": path, **({} if args is None else {"args": args})})
    print(json.dumps(result, ensure_ascii=False))


def main() -> None:
    parser = command_line("Call a method.")
    parser.add_argument("path", help="the path of a method")
    parser.add_argument(
        "args", nargs="?", type=read_json, metavar="JSON-ARGS", help="""such as '[1, 2]' or '{"a": 1}'"""
    )
    given = parser.parse_args()
    run(call(given.tcp, given.path, given.args))


if __name__ == "__main__":
    main()
