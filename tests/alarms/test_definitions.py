"""Files of alarms."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetbus.alarms import Alarm, read_alarms
from jetbus.alarms.definitions import ALARMS_MAX, TEXT_CHARS_MAX
from jetbus.entries import BadEntry
from jetbus.rules import rule

FILE = """
[alarm.hot]
rule = "plant/**/temperature"
when = "num > 80"
clear = "num < 75"
hold = "1m30s"
severity = "warning"

[alarm.any]
when = "flag"

[alarm.all]
when = "num > 80 or num <= -5.5"
deadband = "2"
delay_on = "2s"
priority = "critical"
group = "boiler"
latch = true
message = "{path} is {value}"
help = "Close the valve."
"""


def _write(folder: Path, text: str) -> Path:
    file = folder / "alarms.toml"
    file.write_text(text)
    return file


def test_a_file_of_alarms(tmp_path: Path) -> None:
    """A file has an alarm per section; what is left out has a default."""
    hot, anything, most = read_alarms(_write(tmp_path, FILE))
    assert hot == Alarm("hot", rule("plant/**/temperature"), "num > 80", "num < 75", 90_000_000, "warning")
    assert anything == Alarm("any", rule("**"), "flag", None, 0, "alarm")
    words = "critical", "boiler", True, "{path} is {value}", "Close the valve."
    assert (most.priority, most.group, most.latch, most.message, most.help) == words
    assert most.hold_us == 2_000_000
    assert most.clear == "not (num > 80 - 2 or num <= -5.5 + 2)"


WRONG_FILES = {
    "no TOML": ("[alarm", "is not TOML"),
    "no alarms": ("[alarms.x]\nwhen = 'flag'", "begin each with [alarm.NAME]"),
    "no condition": ("[alarm.x]\nrule = 'a'", "alarm 'x': it needs a condition"),
    "unknown word": ("[alarm.x]\nwhen = 'flag'\nif = 'a'", "alarm 'x': there is no 'if'"),
    "no text": ("[alarm.x]\nwhen = 'flag'\nhold = 5", "alarm 'x': hold takes text in quotes, not 5"),
    "no truth": ("[alarm.x]\nwhen = 'flag'\nlatch = 5", "alarm 'x': latch takes true or false, not 5"),
    "no duration": ("[alarm.x]\nwhen = 'flag'\nhold = 'long'", "alarm 'x': 'long' is not a duration"),
    "two holds": ("[alarm.x]\nwhen = 'flag'\nhold = '1s'\ndelay_on = '1s'", "hold and delay_on are the same"),
    "clear of a stale state": ("[alarm.x]\nwhen = 'stale'\nclear = 'flag'", "alarm 'x': a state is no longer stale"),
    "value in rule": ("[alarm.x]\nwhen = 'flag'\nrule = '** value>7'", "alarm 'x': '** value>7' has tests on values"),
    "sorted rule": ("[alarm.x]\nwhen = 'flag'\nrule = '** sort:path'", "alarm 'x': "),
    "priority": ("[alarm.x]\nwhen = 'flag'\npriority = 'top'", "there is no priority 'top'; there are critical, high"),
    "deadband and clear": ("[alarm.x]\nwhen = 'num > 1'\nclear = 'num < 1'\ndeadband = '1'", "exclude each other"),
    "deadband of no number": ("[alarm.x]\nwhen = 'num > 1'\ndeadband = 'x'", "takes a number in quotes"),
    "deadband of no limit": ("[alarm.x]\nwhen = 'abs(num) > 1'\ndeadband = '1'", "deadband needs a condition such as"),
    "long help": (f"[alarm.x]\nwhen = 'flag'\nhelp = '{'a' * (TEXT_CHARS_MAX + 1)}'", "more than 1000 characters"),
    "too many": ("".join(f"[alarm.x{n}]\nwhen = 'flag'\n" for n in range(ALARMS_MAX + 1)), "merge some by wider rules"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file_is_named(tmp_path: Path, case: str) -> None:
    """An error in a file names the alarm and says what to write instead."""
    text, message = WRONG_FILES[case]
    with pytest.raises(BadEntry) as caught:
        read_alarms(_write(tmp_path, text))
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that cannot be read is named."""
    with pytest.raises(BadEntry, match=r"cannot read '.*none\.toml': No such file"):
        read_alarms(tmp_path / "none.toml")
