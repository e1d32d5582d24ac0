"""Responses of recorded methods: as at their last recorded call with the same arguments.

A journal has the arguments of a call and whether it succeeded, and its error if not, but not its result. So a call that
succeeded returns null, and a call with arguments that were never recorded is refused.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from jetbus.errors import Refused
from jetbus.journal.instants import write_instant
from jetbus.json_types import Json
from jetbus.peer.values import encode_args, read_args
from jetbus.player.recording import RecordedCall

log = logging.getLogger("jetbus.player")

OUTCOMES_MAX = 1_000_000
"""Distinct calls that are remembered, at most."""


class RecordedOutcome(NamedTuple):
    """Outcome of a recorded call; without a code it succeeded."""

    ts_us: int
    code: int | None = None
    error: str = ""
    data: Json = None


class Outcomes:
    """Outcomes by method and arguments, each only where it became another one."""

    def __init__(self, calls: Iterable[RecordedCall]) -> None:
        self._known: dict[tuple[str, bytes], list[RecordedOutcome]] = {}
        for call in calls:
            if not self._learn(call):
                log.warning("more than %d different calls are recorded; the others are not answered", OUTCOMES_MAX)
                break

    def _learn(self, call: RecordedCall) -> bool:
        outcome = _read_outcome(call)
        key = call.path, _encode_key(msgspec.json.decode(call.args) if call.args else [])
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= OUTCOMES_MAX:
                return False
            self._known[key] = [outcome]
        # Only where the outcome changes: a method that always succeeds takes one entry, however often it was called.
        elif known[-1][1:] != outcome[1:]:
            known.append(outcome)
        return True

    def answer(self, path: str, args: Json, instant_us: int) -> None:
        """Answer a call at an instant of the recording: nothing if it went well, its error if not."""
        known = self._known.get((path, _encode_key(args)), [])
        # The last outcome up to now: calls of the recording's future have not happened yet.
        at = bisect_right(known, instant_us, key=lambda outcome: outcome.ts_us)
        if not at:
            raise ValueError(
                f"no call of {path} with these arguments was recorded up to {write_instant(instant_us)};"
                " a replay answers only what was asked then"
            )
        outcome = known[at - 1]
        if outcome.code is not None:
            raise Refused(outcome.error, outcome.data, code=outcome.code)


def _read_outcome(call: RecordedCall) -> RecordedOutcome:
    detail = msgspec.json.decode(call.detail)
    if detail.get("outcome") != "error":
        return RecordedOutcome(call.ts_us)
    return RecordedOutcome(
        call.ts_us, detail.get("code") or -32603, detail.get("error") or "Internal error", detail.get("data")
    )


def _encode_key(args: Json) -> bytes:
    """Return arguments in a canonical form; no arguments are the same by position and by name."""
    # Members are sorted, because named arguments have no order.
    args = read_args(args)
    return msgspec.json.encode(msgspec.json.decode(encode_args(args)), order="sorted") if args else b""
