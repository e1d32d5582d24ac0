"""``jet peers``: the connections of a daemon."""

from __future__ import annotations

from jetbus.cli.command import Example, command
from jetbus.cli.output import Output
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject
from jetbus.peer.simple import SimplePeer
from jetbus.rules import parse_rule

COLUMNS = ("number", "name", "user", "elements", "fetches", "routes", "outbox_bytes", "slow", "transport", "address")


@command(
    examples=[
        Example("jet peers", "all peers, with what they own and fetch"),
        Example("jet peers --output jsonl", "the same for a script"),
    ]
)
def peers(bus: Target, form: str | None) -> None:
    """List the connected peers: what they own and fetch, the bytes waiting for them, and whether they are slow.

    The list includes `jet` itself. If the daemon has users, their names are shown to administrators only.
    """
    with bus.connect() as peer:
        peer.check_jetbus("list connections")
        found = list_peers(peer)
    Output(COLUMNS, form, value="name").put_all(found)


def list_peers(peer: SimplePeer) -> list[JsonObject]:
    """Return the connected peers, sorted by number."""
    found = peer.get_all(parse_rule("$jet/peers/*"))
    users = peer.get_all(parse_rule("$jet/logins")).get("$jet/logins", {})  # visible to administrators only
    records = []
    for path, info in found.items():
        number = path.rpartition("/")[2]
        records.append({"number": int(number), "user": users.get(number), **info})
    return sorted(records, key=lambda record: record["number"])
