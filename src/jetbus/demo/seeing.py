"""What the demo itself sees on its bus: values and their course, what Spark has published, which alarms are raised."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from jetbus.demo.analysis import Analysis
from jetbus.demo.jetd import BUS
from jetbus.demo.tables import PREFIX
from jetbus.peer import Event, PeerAsync

ROLLUPS, ALARMS, PIPELINE = f"{PREFIX}/rollups/", f"{PREFIX}/alarms/", f"{PREFIX}/pipeline/"
COURSE_MAX = 240
"""Samples that are kept of each number."""
SAMPLE_S = 1.0
NEWS_MAX = 100


class Seen:
    """What a peer was told, from the start on."""

    def __init__(self, analysis: Analysis) -> None:
        self.began_s = time.monotonic()
        self.values: dict[str, Any] = {}
        self.events = 0
        self.rollups = 0
        self.raised = 0
        self.news: deque[str] = deque(maxlen=NEWS_MAX)
        """What has happened to alarms; who tells of it takes it away."""
        self._analysis = analysis
        self._courses: dict[str, deque[float]] = {}
        self._sampled_s = self.began_s
        self._counted = 0
        self.per_s = 0.0
        """Events of the last second or so."""
        self._since: dict[str, str] = {}

    async def begin(self, peer: PeerAsync) -> None:
        """See all that is there, and all that happens from now on."""
        await peer.fetch("**", self._take).ready()

    def _take(self, event: Event) -> None:
        if event.is_method:
            return
        self.events += 1
        if event.kind == "remove":
            self.values.pop(event.path, None)
            return
        self.values[event.path] = event.value
        if event.path.startswith(ROLLUPS):
            self.rollups += 1
            self._analysis.has_published()
        elif event.path.startswith(ALARMS):
            self._take_alarm(event.path, event.value)

    def _take_alarm(self, path: str, told: Any) -> None:
        """Of an alarm that was raised and cleared within one batch only the end is told; it counts, too."""
        name, about = _alarm_of(path)
        what, since = _member(told, "what"), _member(told, "raised_at")
        if since is not None and self._since.get(path) != since:
            self._since[path] = since
            self.raised += 1
        if what in ("raised", "cleared"):
            self.news.append(f"alarm {what}: {name} at {about}")

    # -- what the screen shows

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def states(self) -> int:
        """States that are on the bus."""
        return len(self.values)

    def sample(self) -> None:
        """Take down every number; once a second, however often it is asked for."""
        now = time.monotonic()
        passed_s = now - self._sampled_s
        if passed_s < SAMPLE_S and self._courses:
            return
        self.per_s, self._counted = (self.events - self._counted) / max(passed_s, 1e-3), self.events
        self._sampled_s = now
        for path, value in self.values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._courses.setdefault(path, deque(maxlen=COURSE_MAX)).append(value)

    def course(self, path: str) -> list[float]:
        """A number over the last minutes, one sample a second."""
        return list(self._courses.get(path, ()))

    def mean(self, path: str) -> float | None:
        """The time-weighted mean of the newest second that Spark knows of."""
        found = _member(self.values.get(f"{ROLLUPS}1s/{BUS}/{path}"), "time_mean")
        return found if isinstance(found, int | float) else None

    def alarms(self) -> dict[str, list[str]]:
        """The alarms that are raised now, by the path that they are about."""
        found: dict[str, list[str]] = {}
        for path, told in self.values.items():
            if path.startswith(ALARMS) and _member(told, "what") == "raised":
                name, about = _alarm_of(path)
                found.setdefault(about, []).append(name)
        return found

    def lag_s(self) -> float:
        """How far Spark was behind with its newest batch."""
        return float(_member(self.values.get(f"{PIPELINE}lag"), "seconds") or 0)

    def batches(self) -> int:
        """Count the batches that Spark has made; it numbers them from 0, and -1 stands for none."""
        number = _member(self.values.get(f"{PIPELINE}batch"), "number")
        return number + 1 if isinstance(number, int) else 0


def _member(told: Any, name: str) -> Any:
    """A member of an object; nothing where there is none: everybody may put something below these paths."""
    return told.get(name) if isinstance(told, dict) else None


def _alarm_of(path: str) -> tuple[str, str]:
    """The name of an alarm, and the path that it is about."""
    name, _, about = path.removeprefix(ALARMS).partition("/")
    return name, about.removeprefix(f"{BUS}/")
