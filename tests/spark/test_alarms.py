"""Alarm files and rules as columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.rules import rule
from jetbus.spark import BadAlarm, BadOption
from jetbus.spark.alarms import Alarm, check_alarms, read_alarms
from jetbus.spark.conditions import matches
from spark.journals import numbers
from spark.logs import frame

FILE = """
[alarm.hot]
rule = "plant/**/temperature"
when = "num > 80"
clear = "num < 75"
hold = "1m30s"
severity = "warning"

[alarm.any]
when = "flag"
"""


def test_a_file_of_alarms(tmp_path: Path, spark: SparkSession) -> None:
    """A file has an alarm per section; what is left out has a default."""
    file = tmp_path / "alarms.toml"
    file.write_text(FILE)
    hot, anything = read_alarms(file)
    assert hot == Alarm("hot", rule("plant/**/temperature"), "num > 80", "num < 75", 90_000_000, "warning")
    assert anything == Alarm("any", rule("**"), "flag", None, 0, "alarm")
    check_alarms((hot, anything), spark)


WRONG_FILES = {
    "no TOML": ("[alarm", "is no TOML"),
    "no alarms": ("[alarms.x]\nwhen = 'flag'", "begin each with [alarm.NAME]"),
    "no condition": ("[alarm.x]\nrule = 'a'", "alarm 'x': it needs a condition"),
    "unknown word": ("[alarm.x]\nwhen = 'flag'\nif = 'a'", "alarm 'x': there is no 'if'"),
    "no text": ("[alarm.x]\nwhen = 'flag'\nhold = 5", "alarm 'x': hold takes text in quotes, not 5"),
    "no duration": ("[alarm.x]\nwhen = 'flag'\nhold = 'long'", "alarm 'x': 'long' is no duration"),
    "value in rule": ("[alarm.x]\nwhen = 'flag'\nrule = '** value>7'", "say them in SQL"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file_is_named(tmp_path: Path, case: str) -> None:
    """What is wrong in a file is said with the name of the alarm and what to write instead."""
    text, message = WRONG_FILES[case]
    file = tmp_path / "alarms.toml"
    file.write_text(text)
    with pytest.raises(BadOption) as caught:
        read_alarms(file)
    assert message in str(caught.value)


def test_a_wrong_condition_is_named_before_anything_runs(spark: SparkSession) -> None:
    """A condition that Spark does not understand, or that is none, is refused with the name of its alarm."""
    for condition, message in (
        ("num >", "is not understood"),
        ("speed > 3", "is not understood"),
        ("num + 1", "is a double"),
    ):
        with pytest.raises(BadAlarm, match=message):
            check_alarms((Alarm("x", rule("**"), condition),), spark)


RULES = ("**", "n/*", "n/3", "*/3", "**3", "N/3 nocase", "n/**/3", "x/**", '"n/*"', "$jet/**", "n.3")
PATHS = ("n", "n/3", "n/3/3", "N/3", "n/33", "n/*", "x", "$jet/n", "$jets", "n\n3", "n.3", "n/(3)+", "ä/3")


def test_rules_as_columns_are_the_rules(spark: SparkSession) -> None:
    """A rule decided by Spark holds for just the paths it holds for on the bus."""
    log = [event._replace(path=path) for event, path in zip(numbers(len(PATHS)), PATHS, strict=True)]
    columns = [matches(rule(text), F.col("path")).alias(str(n)) for n, text in enumerate(RULES)]
    found = {row["path"]: row for row in frame(spark, log).select("path", *columns).collect()}
    for n, text in enumerate(RULES):
        made = rule(text)
        wanted = [path for path in PATHS if made.matches_path(path) and (made.sees_daemon or path != "$jet/n")]
        assert [path for path in PATHS if found[path][str(n)]] == wanted, text
