"""The shell round the brain: listeners, connections, outboxes, users, settings and the daemon's states about itself."""

from jetbus.daemon.config import Config
from jetbus.daemon.daemon import Daemon

__all__ = ["Config", "Daemon"]
