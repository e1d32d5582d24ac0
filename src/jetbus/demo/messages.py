"""Messages of the demo: its state, commands to try, and the summary. They are plain lines; others print or draw them.

Every command of ``TIPS`` works as soon as it is shown; a test runs each of them.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jetbus.demo.analysis import AnalysisPhase
from jetbus.demo.demo import Demo, Summary
from jetbus.demo.model import ALARMS, ROLLUPS

TIPS_MAX = 6
BARS = "▁▂▃▄▅▆▇█"
LINE = "─"
SCALE_WIDTH = 13
"""Columns for the scale of a course, such as 12.3..45.6, and a space."""


class Tip(NamedTuple):
    """Command to try, without the options for its bus, its purpose, and the part of the demo it needs."""

    line: str
    purpose: str
    needs: str = "bus"


TIPS = (
    Tip("jet watch 'plant/pump/2/**'", "a pump whose bearing fails now and then"),
    Tip("jet set plant/heater/setpoint_c 80", "overheat the tank"),
    Tip("jet call plant/filter/clean", "clean the filter"),
    Tip("jet history plant/tank/level_percent --since -1m --plot", "chart from the journal", "journal"),
    Tip("jet watch 'spark/alarms/**'", "alarms raised by Spark", "spark"),
    Tip("jet call spark/query/sql -s 'select alarm, what, ts from alarms' --timeout 60s", "query Spark", "spark"),
    Tip("jet get alarms/counts", "alarms; see jet alarms ls, and ack", "alarms"),
    Tip("jet top", "the busiest paths"),
    Tip("jet tree plant", "all states and methods"),
    Tip("jet get 'plant/pump/*/speed_rpm'", "the speed of each pump"),
)
"""Commands in order of interest. The first ``TIPS_MAX`` that need no Spark are shown, and later those that do."""

SHOWN_PATHS = (
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
"""States on the screen, in order of interest."""


def list_tips(demo: Demo, *, is_default: bool) -> list[tuple[str, str]]:
    """Return the commands that work now, with their purposes; ``is_default`` if jet finds this bus without --url."""
    has = {
        "bus": True,
        "journal": demo.jetd.journal is not None,
        "alarms": demo.jetd.has_alarms,
        "spark": demo.analysis.phase is AnalysisPhase.PUBLISHING,
    }
    # Those that need Spark come last, so that nothing moves or goes away while a user reads.
    found = [tip for tip in TIPS if has[tip.needs] and tip.needs != "spark"][:TIPS_MAX]
    found += [tip for tip in TIPS if has[tip.needs] and tip.needs == "spark"]
    return [(_format_tip(tip.line, demo, is_default), tip.purpose) for tip in found]


def _format_tip(line: str, demo: Demo, is_default: bool) -> str:
    where = "" if is_default else f" --url {demo.jetd.url}"
    return find_program() + line.removeprefix("jet") + where


def find_program() -> str:
    """Return the command that starts this ``jet`` in another terminal."""
    called = sys.argv[0]
    if Path(called).name != "jet":
        return f"{shlex.quote(sys.executable)} -m jetbus.cli"
    # The first jet on the PATH may belong to another installation.
    return "jet" if shutil.which("jet") == called else shlex.quote(called)


def describe_terminal() -> str:
    """Return where to run the commands."""
    # A relative path works only in the folder in which the demo was started.
    here = find_program()
    return (
        "another terminal" if here == "jet" or here.lstrip("'").startswith("/") else "another terminal, in this folder"
    )


def fold_command(command: str, width: int) -> list[str]:
    """Return a command as one line or, if that is too wide, as two lines that can be pasted."""
    # At the last option that starts within the width or, if there is none, at the first option.
    cut = max(command.rfind(" --", 0, width + 1), command.find(" --"))
    if len(command) <= width or cut < 0:
        return [command]
    return [command[:cut] + " \\", "   " + command[cut:]]


def describe_spark(demo: Demo) -> str:
    """Return a sentence about the progress of Spark."""
    model, analysis = demo.model, demo.analysis
    match analysis.phase:
        case AnalysisPhase.ABSENT:
            return f"Spark is not running: {analysis.why}"
        case AnalysisPhase.INSTALLING:
            return f"Spark is being installed meanwhile ... ({model.seconds:.0f} s)"
        case AnalysisPhase.STARTING:
            return f"Spark is starting ... ({model.seconds:.0f} s)"
        case AnalysisPhase.READING:
            return f"Spark is reading the journal ... ({model.seconds:.0f} s)"
    alarms = f"{model.raised} {'alarm' if model.raised == 1 else 'alarms'} raised"
    progress = f"batch {model.count_batches()}, {model.get_lag_s():.1f} s behind"
    return f"Spark is publishing: {progress}, {model.rollups} rollups, {alarms}"


def describe_bus(demo: Demo) -> str:
    """Return a sentence about the bus and its address."""
    jetd, owner = demo.jetd, demo.owner
    why = "" if jetd.is_usual else " (the default ports are in use)"
    return f"{len(owner.states)} states and {len(owner.methods)} methods of a plant at {jetd.url}{why}"


def describe_radar(demo: Demo) -> list[str]:
    """Return a line with the address of the bus in a browser; none without Radar."""
    return [f"In a browser: {demo.jetd.radar}"] if demo.jetd.radar else []


def describe_summary(demo: Demo, did: Summary) -> str:
    """Return the summary for the end of the demo."""
    recorded = "nothing" if demo.jetd.journal is None else f"{did.recorded} events"
    spark = f"Spark was {demo.analysis.phase.value}"
    if demo.analysis.phase is AnalysisPhase.PUBLISHING:
        found = f"{did.rollups} rollups below {ROLLUPS} and raised {did.alarms} alarms below {ALARMS}"
        spark = f"in {did.batches} batches Spark published {found}"
    bus = f"{did.seconds:.1f} s at {demo.jetd.url}: {did.states} states on the bus, {recorded} recorded"
    return f"{bus}; {spark}; {demo.folder} is removed"


def draw_course(course: Sequence[float], width: int) -> str:
    """Draw numbers as bars, with the lowest and the highest of them as a scale, as far as ``width`` has room for it."""
    shown = list(course[-max(width - SCALE_WIDTH, 1) :])
    if width < 2 * SCALE_WIDTH or not shown:
        return draw_bars(course, width)
    low, high = (format_number(number) for number in (min(shown), max(shown)))
    scale = low if low == high else f"{low}..{high}"
    return f"{scale:{SCALE_WIDTH - 1}} {draw_bars(shown, width - SCALE_WIDTH)}"


def draw_bars(course: Sequence[float], width: int) -> str:
    """Draw the last ``width`` numbers as bars from the lowest to the highest of them; a constant is a line."""
    shown = list(course[-width:]) if width > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    top = len(BARS) - 1
    return "".join(BARS[round(top * (number - low) / (high - low))] if high > low else LINE for number in shown)


def format_number(number: float) -> str:
    """Return a number in at most five characters, if that is possible.

    >>> [format_number(number) for number in (0.0712, 12.345, 2954.2, 1e9)]
    ['0.07', '12.3', '2954', '1e+09']
    """
    size = abs(number)
    if size >= 100_000:
        return f"{number:.0e}"
    digits = 0 if size >= 1000 or number == int(number) else 1 if size >= 10 else 2
    return f"{number:.{digits}f}"
