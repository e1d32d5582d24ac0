"""The limits of the brain, each with a name under which it is configured, counted and told.

``most`` is the highest a limit may be set to: deeper texts than that would exhaust the interpreter's own stack, longer
paths would not fit into the keys of the binary protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of each there may be. ``help`` and defaults are shown by ``jetd --help``."""

    depth_max: int = field(default=128, metadata={"help": "levels of nesting in a message", "most": 500})
    batch_max: int = field(default=10_000, metadata={"help": "messages in one batch"})
    batch_bytes_max: int = field(
        default=10_000_000, metadata={"help": "bytes of the batch that answers a batch of the 2012 dialect"}
    )
    path_chars_max: int = field(default=4096, metadata={"help": "characters of a path", "most": 16_383})
    elements_max: int = field(default=1_000_000, metadata={"help": "states and methods on the bus"})
    members_max: int = field(default=100, metadata={"help": "members that describe one state or method, as in 2012"})
    fetches_max: int = field(default=10_000, metadata={"help": "fetches of one peer"})
    number_chars_max: int = field(default=400, metadata={"help": "characters of a number", "most": 4_000})
    routes_max: int = field(default=10_000, metadata={"help": "requests waiting for one owner"})
