"""Alarms beside the daemon, for ``jetd --alarms``: a child process that watches the states of this daemon."""

from __future__ import annotations

from collections.abc import Mapping

from jetbus.daemon.config import Config, ConfigError
from jetbus.daemon.peer_process import PeerProcess, find_url


class AlarmsProcess(PeerProcess):
    """The child process of the alarms."""

    name = "the process of the alarms"
    module = "jetbus.alarms.child"
    needed = ("sqlglot", "pyarrow")
    extra = "alarms"

    def __init__(self, config: Config, listening: Mapping[str, str]) -> None:
        if config.journal is None:
            raise ConfigError("alarms need the time and the past of a journal; give --journal DIR")
        if config.alarms is None or not config.alarms.is_file():
            raise ConfigError(f"alarms: there is no file {config.alarms}; `jet alarms check FILE` checks one")
        super().__init__(["--url", find_url("alarms", config, listening), str(config.alarms)])
