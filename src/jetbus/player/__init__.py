"""Replay of a range of a journal onto a bus, at any speed.

``Player`` is a peer that owns the recorded elements and repeats their events; ``play`` does it in one call.
"""

from jetbus.player.clock import Clock
from jetbus.player.player import Player, Progress, play

__all__ = ["Clock", "Player", "Progress", "play"]
