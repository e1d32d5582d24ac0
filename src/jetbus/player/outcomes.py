"""How recorded methods answer: as they did when they were last called with the same arguments.

A journal knows of a call its arguments, whether it went well, and the error if not; it does not know the result. So
what went well is answered with null. What never was called so is refused.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from jetbus.errors import Refused
from jetbus.journal.instants import write_instant
from jetbus.peer.values import encode_args, read_args
from jetbus.player.reel import Called

log = logging.getLogger("jetbus.player")

OUTCOMES_MAX = 1_000_000
"""Different calls that are remembered."""


class Outcome(NamedTuple):
    """The outcome of a call from an instant on; without a code it went well."""

    ts_us: int
    code: int | None = None
    error: str = ""
    data: Any = None


class Outcomes:
    """Outcomes by method and arguments, each only where it became another one."""

    def __init__(self, calls: Iterable[Called]) -> None:
        self._known: dict[tuple[str, bytes], list[Outcome]] = {}
        for call in calls:
            if not self._learn(call):
                log.warning("more than %d different calls are recorded; the others are not answered", OUTCOMES_MAX)
                break

    def _learn(self, call: Called) -> bool:
        outcome = _outcome(call)
        key = call.path, _key(msgspec.json.decode(call.args) if call.args else [])
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= OUTCOMES_MAX:
                return False
            self._known[key] = [outcome]
        elif known[-1][1:] != outcome[1:]:
            known.append(outcome)
        return True

    def answer(self, path: str, args: Any, instant_us: int) -> None:
        """Answer a call at an instant of the recording: nothing if it went well, its error if not."""
        known = self._known.get((path, _key(args)), [])
        at = bisect_right(known, instant_us, key=lambda outcome: outcome.ts_us)
        if not at:
            raise ValueError(
                f"no call of {path} with these arguments was recorded up to {write_instant(instant_us)};"
                " a replay answers only what was asked then"
            )
        outcome = known[at - 1]
        if outcome.code is not None:
            raise Refused(outcome.error, outcome.data, code=outcome.code)


def _outcome(call: Called) -> Outcome:
    told = msgspec.json.decode(call.detail)
    if told.get("outcome") != "error":
        return Outcome(call.ts_us)
    return Outcome(call.ts_us, told.get("code") or -32603, told.get("error") or "Internal error", told.get("data"))


def _key(args: Any) -> bytes:
    """Arguments as one text, however they were written; none at all are the same by position and by name."""
    args = read_args(args)
    return msgspec.json.encode(msgspec.json.decode(encode_args(args)), order="sorted") if args else b""
