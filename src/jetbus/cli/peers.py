"""``jet peers``: who is on the bus."""

from __future__ import annotations

from typing import Any

from jetbus.cli.buses import Bus
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
from jetbus.cli.quick import QuickPeer
from jetbus.rules import parse_rule

COLUMNS = ("number", "name", "user", "elements", "fetches", "routes", "outbox_bytes", "slow", "transport", "address")


@command(
    examples=[
        Example("jet peers", "everybody, and how much they own and fetch"),
        Example("jet peers --output jsonl", "the same for a script"),
    ]
)
def peers(bus: Bus, form: str | None) -> None:
    """The peers that are connected: what they own and fetch, what waits for them and whether they are slow.

    `jet` itself is one of them.
    """
    with bus.quick() as peer:
        peer.check_ours("tell who is connected")
        found = connected(peer)
    Output(COLUMNS, form, value="name").put_all(found)


def connected(peer: QuickPeer) -> list[dict[str, Any]]:
    """All that are connected, by number."""
    found = peer.get(parse_rule("$jet/peers/*"))
    told = [{"number": int(path.rpartition("/")[2]), **about} for path, about in found.items()]
    return sorted(told, key=lambda one: one["number"])
