"""Replay: a range of a journal, played onto a bus at any speed.

``Player`` is a peer that owns what was recorded and lets it happen again; ``play`` does it in one call.
"""

from jetbus.player.clock import Clock
from jetbus.player.player import Player, Progress, play

__all__ = ["Clock", "Player", "Progress", "play"]
