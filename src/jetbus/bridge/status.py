"""What a bridge tells of itself, and why it may not start."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from jetbus.errors import JetError


class SameBus(JetError):
    """Both ends of a bridge are at the same bus."""


class Phase(Enum):
    """What a bridge is doing."""

    CONNECTING = "connecting"
    MOUNTING = "mounting"
    WAITING = "waiting: another bridge has the prefix"
    MOUNTED = "mounted"
    FAR_LOST = "the far bus is lost"
    NEAR_LOST = "the near bus is lost"
    STOPPED = "stopped"


class Status(NamedTuple):
    """How things are with a bridge."""

    phase: Phase
    mounted: int = 0
    """States and methods of the far bus that are on the near bus, or will be as soon as it is back."""
    blocked: int = 0
    """Those that could not be added; they are tried again."""

    def __str__(self) -> str:
        told = [self.phase.value]
        if self.phase is Phase.MOUNTED:
            told.append("1 state or method" if self.mounted == 1 else f"{self.mounted} states and methods")
        if self.blocked:
            told.append(f"{self.blocked} could not be added")
        return ", ".join(told)
