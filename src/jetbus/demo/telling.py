"""What the demo says: how things are, what to try next, what was done. Plain lines; others print or draw them.

Every line of ``TIPS`` works as it is told, as soon as it is told; a test types each of them.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jetbus.demo.analysis import Phase
from jetbus.demo.demo import Demo, Summary
from jetbus.demo.seeing import ALARMS, ROLLUPS

TIPS_MAX = 6
BARS = "▁▂▃▄▅▆▇█"


class Tip(NamedTuple):
    """Something to try: a command without its bus, what it is for, and what must be there for it."""

    line: str
    purpose: str
    needs: str = "bus"


TIPS = (
    Tip("jet watch 'plant/pump/2/**'", "a pump; its bearing fails now and then"),
    Tip("jet set plant/heater/setpoint_c 80", "and soon it is too hot"),
    Tip("jet call plant/filter/clean", "see it clog again"),
    Tip("jet history plant/tank/level_percent --since -1m --plot", "from the journal", "journal"),
    Tip("jet watch 'spark/alarms/**'", "what Spark finds", "spark"),
    Tip("jet call spark/query/sql -s 'select alarm, what, ts from alarms' --timeout 60s", "asked of Spark", "spark"),
    Tip("jet top", "who talks most"),
    Tip("jet tree plant", "all that there is"),
    Tip("jet get 'plant/pump/*/speed_rpm'", "how fast they turn"),
)
"""From the most to the least telling; the first that can be tried are told."""

SHOWN = (
    "plant/tank/level_percent",
    "plant/tank/temperature_c",
    "plant/pump/2/vibration_mm_s",
    "plant/filter/pressure_drop_mbar",
    "plant/heater/power_kw",
    "plant/tank/outflow_l_min",
    "plant/tank/inflow_l_min",
    "plant/pump/2/bearing_c",
    "plant/pump/1/speed_rpm",
    "plant/filter/clogged_percent",
    "plant/pump/2/current_a",
    "plant/demand_percent",
    "plant/pump/3/vibration_mm_s",
    "plant/tank/pressure_mbar",
)
"""States that are worth looking at, the best first."""


def tips(demo: Demo, *, is_default: bool) -> list[tuple[str, str]]:
    """What can be tried now, as typed, and what it is for. ``is_default``: jet finds this bus without --url."""
    has = {
        "bus": True,
        "journal": demo.jetd.journal is not None,
        "spark": demo.analysis.phase is Phase.PUBLISHING,
    }
    found = [tip for tip in TIPS if has[tip.needs]][:TIPS_MAX]
    return [(_typed(tip.line, demo, is_default), tip.purpose) for tip in found]


def _typed(line: str, demo: Demo, is_default: bool) -> str:
    where = "" if is_default else f" --url {demo.jetd.url}"
    return program() + line.removeprefix("jet") + where


def program() -> str:
    """How this ``jet`` is called in another terminal."""
    called = sys.argv[0]
    if Path(called).name != "jet":
        return f"{shlex.quote(sys.executable)} -m jetbus.cli"
    return "jet" if shutil.which("jet") == called else shlex.quote(called)


def another_terminal() -> str:
    """Where to type what can be tried."""
    here = program()
    return (
        "another terminal" if here == "jet" or here.lstrip("'").startswith("/") else "another terminal, in this folder"
    )


def folded(command: str, width: int) -> list[str]:
    """A command as one line or, where that is too wide, as two that can be pasted."""
    cut = max(command.rfind(" --", 0, width + 1), command.find(" --"))
    if len(command) <= width or cut < 0:
        return [command]
    return [command[:cut] + " \\", "   " + command[cut:]]


def spark_line(demo: Demo) -> str:
    """How far Spark is."""
    seen, analysis = demo.seen, demo.analysis
    match analysis.phase:
        case Phase.LEFT_OUT:
            return f"Spark is left out: {analysis.why}"
        case Phase.STARTING:
            return f"Spark is starting ... ({seen.seconds:.0f} s)"
        case Phase.READING:
            return f"Spark is reading the journal ... ({seen.seconds:.0f} s)"
    alarms = f"{seen.raised} {'alarm' if seen.raised == 1 else 'alarms'} raised"
    return f"Spark is publishing: batch {seen.batches()}, {seen.lag_s():.1f} s behind, {seen.rollups} rollups, {alarms}"


def bus_line(demo: Demo) -> str:
    """What is on the bus, and where it is."""
    jetd, owner = demo.jetd, demo.owner
    why = "" if jetd.is_usual else " (the usual ports are in use)"
    return f"{len(owner.states)} states and {len(owner.methods)} methods of a plant at {jetd.url}{why}"


def summary_line(demo: Demo, did: Summary) -> str:
    """What a demo has done, for its end."""
    recorded = "nothing" if demo.jetd.journal is None else f"{did.recorded} events"
    spark = f"Spark was {demo.analysis.phase.value}"
    if demo.analysis.phase is Phase.PUBLISHING:
        found = f"{did.rollups} rollups below {ROLLUPS} and raised {did.alarms} alarms below {ALARMS}"
        spark = f"in {did.batches} batches Spark published {found}"
    bus = f"{did.seconds:.1f} s at {demo.jetd.url}: {did.states} states on the bus, {recorded} recorded"
    return f"{bus}; {spark}; {demo.folder} is removed"


def bars(course: Sequence[float], width: int) -> str:
    """The last of some numbers, drawn between the lowest and the highest of them."""
    shown = list(course[-width:]) if width > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    top = len(BARS) - 1
    return "".join(BARS[round(top * (number - low) / (high - low))] if high > low else BARS[0] for number in shown)
