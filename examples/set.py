"""Set a state: ask its owner for another value.

python examples/set.py plant/pump/1/setpoint_rpm 1800
"""

from __future__ import annotations

import json
from typing import Any

from rawpeer import Peer, command_line, read_json, run


async def set_state(address: str, path: str, value: Any) -> None:
    """Set and print what the owner answered; a warning says that it took another value."""
    async with Peer(address, "set") as peer:
        result = await peer.request("set", {"path": path, "value": value})
    warning = result.get("warning") if isinstance(result, dict) else None
    if warning:
        print(f"done, but adapted: {warning.get('message', json.dumps(warning))}")
    else:
        print("done" if result in (True, {}) else f"done: {json.dumps(result, ensure_ascii=False)}")


def main() -> None:
    parser = command_line("Set a state to a JSON value.")
    parser.add_argument("path", help="the path of a state")
    parser.add_argument(
        "value", type=read_json, metavar="JSON", help="""such as 12.5, true, '"text"' or '{"a": [1]}'"""
    )
    given = parser.parse_args()
    run(set_state(given.tcp, given.path, given.value))


if __name__ == "__main__":
    main()
