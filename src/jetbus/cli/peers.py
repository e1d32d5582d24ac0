"""``jet peers``: who is on the bus."""

from __future__ import annotations

from typing import Any

from jetbus.cli.buses import Bus
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
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
        found = peer.get(parse_rule("$jet/peers/*"))
    with Output(COLUMNS, form, value="name") as out:
        for record in sorted(map(_record, found, found.values()), key=lambda one: one["number"]):
            out.put(record)


def _record(path: str, told: dict[str, Any]) -> dict[str, Any]:
    return {"number": int(path.rpartition("/")[2]), **told}
