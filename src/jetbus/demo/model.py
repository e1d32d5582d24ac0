"""Model of the demo's bus: current values and their history, results of Spark, and raised alarms."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from jetbus.demo.analysis import Analysis
from jetbus.demo.jetd import BUS
from jetbus.demo.tables import PREFIX
from jetbus.peer import Event, PeerAsync

ROLLUPS, ALARMS, PIPELINE = f"{PREFIX}/rollups/", f"{PREFIX}/alarms/", f"{PREFIX}/pipeline/"
SAMPLES_MAX = 240
"""Samples stored for each number."""
SAMPLE_S = 1.0
NEWS_MAX = 100


class BusModel:
    """State of the bus, updated by the events of a peer."""

    def __init__(self, analysis: Analysis) -> None:
        self.began_s = time.monotonic()
        self.values: dict[str, Any] = {}
        self.events = 0
        self.rollups = 0
        self.raised = 0
        self.news: deque[str] = deque(maxlen=NEWS_MAX)
        """Messages about alarms; whoever prints them removes them."""
        self._analysis = analysis
        self._samples: dict[str, deque[float]] = {}
        self._sampled_s = self.began_s
        self._counted = 0
        self.per_s = 0.0
        """Events per second since the last sample."""
        self._since: dict[str, str] = {}

    async def start(self, peer: PeerAsync) -> None:
        """Fetch everything on the bus."""
        # This leaves out the states of the daemon itself, which a rule has to name.
        await peer.fetch("**", self._update).ready()

    def _update(self, event: Event) -> None:
        if event.is_method:
            return
        self.events += 1
        if event.kind == "remove":
            self.values.pop(event.path, None)
            return
        self.values[event.path] = event.value
        if event.path.startswith(ROLLUPS):
            self.rollups += 1
            self._analysis.note_results()
        elif event.path.startswith(ALARMS):
            self._update_alarm(event.path, event.value)

    def _update_alarm(self, path: str, value: Any) -> None:
        """Count an alarm. If it is raised and cleared within one batch, only the end is published, but it counts."""
        name, subject = _split_alarm_path(path)
        what, since = _get_member(value, "what"), _get_member(value, "raised_at")
        # The state of an alarm changes several times while it lasts; only another start is another alarm.
        if since is not None and self._since.get(path) != since:
            self._since[path] = since
            self.raised += 1
        if what in ("raised", "cleared"):
            self.news.append(f"alarm {what}: {name} at {subject}")

    # -- contents of the screen

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def states(self) -> int:
        """Number of states on the bus."""
        return len(self.values)

    def sample(self) -> None:
        """Store a sample of every number, at most once a second."""
        now = time.monotonic()
        passed_s = now - self._sampled_s
        if passed_s < SAMPLE_S and self._samples:
            return
        self.per_s, self._counted = (self.events - self._counted) / max(passed_s, 1e-3), self.events
        self._sampled_s = now
        for path, value in self.values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._samples.setdefault(path, deque(maxlen=SAMPLES_MAX)).append(value)

    def get_samples(self, path: str) -> list[float]:
        """Return the samples of a path, one per second."""
        return list(self._samples.get(path, ()))

    def get_mean(self, path: str) -> float | None:
        """Return the time-weighted mean of the newest second, as published by Spark."""
        found = _get_member(self.values.get(f"{ROLLUPS}1s/{BUS}/{path}"), "time_mean")
        return found if isinstance(found, int | float) else None

    def list_alarms(self) -> dict[str, list[str]]:
        """Return the names of raised alarms, by the path that they monitor."""
        found: dict[str, list[str]] = {}
        for path, value in self.values.items():
            if path.startswith(ALARMS) and _get_member(value, "what") == "raised":
                name, subject = _split_alarm_path(path)
                found.setdefault(subject, []).append(name)
        return found

    def get_lag_s(self) -> float:
        """Return how far Spark was behind after its newest batch."""
        return float(_get_member(self.values.get(f"{PIPELINE}lag"), "seconds") or 0)

    def count_batches(self) -> int:
        """Return the number of batches; Spark numbers them from 0, and -1 stands for none."""
        number = _get_member(self.values.get(f"{PIPELINE}batch"), "number")
        return number + 1 if isinstance(number, int) else 0


def _get_member(value: Any, name: str) -> Any:
    """Return a member of an object, or None: any peer may publish other values below these paths."""
    return value.get(name) if isinstance(value, dict) else None


def _split_alarm_path(path: str) -> tuple[str, str]:
    """Return the name of an alarm and the path that it monitors."""
    name, _, subject = path.removeprefix(ALARMS).partition("/")
    return name, subject.removeprefix(f"{BUS}/")
