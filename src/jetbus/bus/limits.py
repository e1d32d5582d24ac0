"""Limits of the bus, each with the name under which it is configured and counted.

``most`` is the highest a limit may be set to: deeper texts than that would exhaust the interpreter's own stack, longer
paths would not fit into the keys of the binary protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jetbus.luapattern import STEPS_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the bus. ``jetd --help`` shows ``help`` and defaults."""

    depth_max: int = field(default=128, metadata={"help": "levels of nesting in a message", "most": 500})
    message_bytes_max: int = field(default=10_000_000, metadata={"help": "bytes of a message"})
    batch_max: int = field(default=10_000, metadata={"help": "messages in one batch"})
    batch_bytes_max: int = field(
        default=10_000_000, metadata={"help": "bytes of the batch that answers a batch of the 2012 dialect"}
    )
    path_chars_max: int = field(default=4096, metadata={"help": "characters of a path", "most": 16_383})
    path_depth_max: int = field(default=64, metadata={"help": "segments of a path, between slashes or dots"})
    elements_max: int = field(default=1_000_000, metadata={"help": "states and methods on the bus"})
    members_max: int = field(default=100, metadata={"help": "members that describe one state or method, as in 2012"})
    schema_bytes_max: int = field(default=65_536, metadata={"help": "bytes of the schema of one state or method"})
    check_bytes_max: int = field(
        default=16_384, metadata={"help": "bytes of a value that is checked against the schema of its state"}
    )
    quality_bytes_max: int = field(default=1_024, metadata={"help": "bytes of the quality of one value"})
    past_s_max: int = field(
        default=36_500 * 86_400, metadata={"help": "seconds that a value of the past may be older than the present"}
    )
    future_s_max: int = field(
        default=600, metadata={"help": "seconds that a value of the past may be ahead of the clock of the daemon"}
    )
    past_values_max: int = field(
        default=5_000, metadata={"help": "values of the past that one peer may send in one turn"}
    )
    kept_bytes_max: int = field(
        default=192 << 20, metadata={"help": "bytes that all peers together make the daemon keep in memory"}
    )
    kept_address_bytes_max: int = field(
        default=160 << 20, metadata={"help": "bytes that the peers of one address make the daemon keep in memory"}
    )
    kept_peer_bytes_max: int = field(
        default=128 << 20, metadata={"help": "bytes that one peer makes the daemon keep in memory"}
    )
    fetches_max: int = field(default=10_000, metadata={"help": "fetches of one peer"})
    fetches_address_max: int = field(default=20_000, metadata={"help": "fetches of all peers of one address"})
    fetches_total_max: int = field(default=50_000, metadata={"help": "fetches of all peers"})
    login_chars_max: int = field(default=1_024, metadata={"help": "characters of a user's name or password"})
    number_chars_max: int = field(default=400, metadata={"help": "characters of a number", "most": 4_000})
    pattern_steps_max: int = field(
        default=STEPS_MAX,
        metadata={"help": "steps that a peer's Lua patterns with back references may take while another has its turn"},
    )
    reservations_max: int = field(default=10_000, metadata={"help": "paths kept for one user after a lost connection"})
    rule_list_max: int = field(
        default=10_000, metadata={"help": "texts or values in the list of one test", "most": 100_000}
    )
    rule_tests_max: int = field(default=10_000, metadata={"help": "tests in the rules of all fetches of one peer"})
    rule_tests_address_max: int = field(
        default=20_000, metadata={"help": "tests in the rules of all fetches of the peers of one address"}
    )
    rule_tests_total_max: int = field(default=50_000, metadata={"help": "tests in the rules of all fetches"})
    rule_work_max: int = field(
        default=3_000_000, metadata={"help": "work of the rule of one fetch or get, about 10 million a second"}
    )
    answer_bytes_max: int = field(
        default=32 << 20, metadata={"help": "bytes of the answer to one get, and of the first events of one fetch"}
    )
    search_bytes_max: int = field(
        default=32 << 20, metadata={"help": "bytes that long gets and fetches prepare at the same time"}
    )
    turn_us_max: int = field(
        default=2_000, metadata={"help": "microseconds that one peer may take before the others have their turn"}
    )
    unread_bytes_max: int = field(
        default=8 << 20, metadata={"help": "bytes a peer may leave unread before its next get or fetch waits"}
    )
    routes_max: int = field(default=10_000, metadata={"help": "requests waiting for one owner"})
