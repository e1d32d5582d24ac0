"""State of a bridge: its phase, its counts, and the paths that could not be added."""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from jetbus.bridge.ends import Mount
from jetbus.errors import JetError

log = logging.getLogger("jetbus.bridge")

RETRY_MAX = 1000
"""Blocked paths that are tried again at a time."""
COMPLAINTS_MAX = 10
"""Paths that are logged one by one, at the same time."""


class SameBus(JetError):
    """Both ends of a bridge are at the same bus."""


class Phase(Enum):
    """Phase of a bridge, with the text that is shown."""

    CONNECTING = "connecting"
    MOUNTING = "mounting"
    WAITING = "waiting: another bridge has the prefix"
    MOUNTED = "mounted"
    FAR_LOST = "the far bus is lost"
    NEAR_LOST = "the near bus is lost"
    STOPPED = "stopped"


class Status(NamedTuple):
    """Phase and counts of a bridge."""

    phase: Phase
    mounted: int = 0
    """States and methods of the far bus that are on the near bus, or will be as soon as it is back."""
    blocked: int = 0
    """Those that could not be added; they are tried again."""

    def __str__(self) -> str:
        parts = [self.phase.value]
        if self.phase is Phase.MOUNTED:
            parts.append("1 state or method" if self.mounted == 1 else f"{self.mounted} states and methods")
        if self.blocked:
            parts.append(f"{self.blocked} could not be added")
        return ", ".join(parts)


class Blocked:
    """Mounts that could not be added, by their path on the near bus: logged once, and tried again in turns."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._mounts: dict[str, Mount] = {}
        self._complained: set[str] = set()

    def __len__(self) -> int:
        return len(self._mounts)

    def __contains__(self, mount: Mount) -> bool:
        return mount.path in self._mounts

    @property
    def trying(self) -> int:
        """Return how many are being tried at this moment."""
        return sum(mount.added for mount in self._mounts.values())

    @property
    def paths(self) -> list[str]:
        """Return the paths of all of them."""
        return list(self._mounts)

    def count_attempts(self, path: str) -> int:
        """Return how often it was tried to add a mount."""
        return self._mounts[path].attempt

    def add(self, mount: Mount, error: JetError) -> None:
        """Note a mount that could not be added."""
        self._mounts[mount.path] = mount
        complained = self._complained
        # One path above the limit stands for all others, and is logged as such.
        if mount.path in complained or len(complained) > COMPLAINTS_MAX:
            return
        complained.add(mount.path)
        if len(complained) > COMPLAINTS_MAX:
            log.warning("more than %d paths could not be added below %s", COMPLAINTS_MAX, self._prefix)
        else:
            log.warning("%s is not mounted: %s; it is tried again", mount.far_path, error)

    def remove(self, mount: Mount) -> bool:
        """Forget a mount that could be added, or is not wanted any more; return whether it was blocked."""
        self._complained.discard(mount.path)
        return self._mounts.pop(mount.path, None) is not None

    def due(self) -> list[Mount]:
        """Return those to try next."""
        mounts = [mount for mount in list(self._mounts.values())[:RETRY_MAX] if not mount.added]
        for mount in mounts:
            self._mounts[mount.path] = self._mounts.pop(mount.path)  # the others are next
        return mounts
