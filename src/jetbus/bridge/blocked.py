"""What is to be on the near bus and could not be added: said once, and tried again one after the other."""

from __future__ import annotations

import logging

from jetbus.bridge.near import Mount
from jetbus.errors import JetError

log = logging.getLogger("jetbus.bridge")

RETRY_MAX = 1000
"""How many are tried again at a time."""
COMPLAINTS_MAX = 10
"""Paths that are logged one by one, at the same time."""


class Blocked:
    """By the path on the near bus."""

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
        """How many are being tried at this moment."""
        return sum(mount.added for mount in self._mounts.values())

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return list(self._mounts)

    def add(self, mount: Mount, error: JetError) -> None:
        """It could not be added."""
        self._mounts[mount.path] = mount
        complained = self._complained
        if mount.path in complained or len(complained) > COMPLAINTS_MAX:
            return
        complained.add(mount.path)
        if len(complained) > COMPLAINTS_MAX:
            log.warning("more than %d paths could not be added below %s", COMPLAINTS_MAX, self._prefix)
        else:
            log.warning("%s is not mounted: %s; it is tried again", mount.far_path, error)

    def remove(self, mount: Mount) -> bool:
        """It could be added now, or is not to be any more. Gives whether it was blocked."""
        self._complained.discard(mount.path)
        return self._mounts.pop(mount.path, None) is not None

    def due(self) -> list[Mount]:
        """Those to try next."""
        mounts = [mount for mount in list(self._mounts.values())[:RETRY_MAX] if not mount.added]
        for mount in mounts:
            self._mounts[mount.path] = self._mounts.pop(mount.path)  # the others are next
        return mounts
