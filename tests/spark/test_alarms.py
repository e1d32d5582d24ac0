"""Alarm files and rules as columns."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jetbus.alarms import Alarm
from jetbus.rules import PATH_TESTS, read_rule, rule
from jetbus.rules.globs import compile_glob
from jetbus.spark import BadAlarm, BadOption, tables
from jetbus.spark.alarms import check_alarms, read_alarms
from jetbus.spark.path_rules import glob_pattern, matches
from jetbus.spark.sql_text import condition, quote
from support.spark.compare import rows_of
from support.spark.journals import numbers
from support.spark.logs import BEGIN_US, frame
from support.spark.reference import Event


def test_a_wrong_file_is_an_error_of_spark(tmp_path: Path) -> None:
    """Errors of the file and of its entries come as those of the Spark side."""
    file = tmp_path / "alarms.toml"
    for text, error, message in (
        ("[alarm", BadOption, "option 'alarms': .* is not TOML"),
        ("[alarm.x]\nrule = 'a'", BadAlarm, "alarm 'x': it needs a condition"),
    ):
        file.write_text(text)
        with pytest.raises(error, match=message):
            read_alarms(file)


def test_a_wrong_condition_is_named_before_anything_runs(spark: SparkSession) -> None:
    """A condition that Spark does not understand, or that is none, is refused with the name of its alarm."""
    for text, message in (
        ("num >", "is not understood"),
        ("speed > 3", "is not understood"),
        ("num + 1", "is a double"),
    ):
        with pytest.raises(BadAlarm, match=message):
            check_alarms((Alarm("x", rule("**"), text),), spark)


ODD_TEXTS = ("it's", "a\\b", "{log}", "${spark.master}", "new\nline", "--", '"', "ä", "")


def test_texts_of_users_are_values_of_a_query(spark: SparkSession) -> None:
    """A name with any letters in it is a value in the SQL of a stage; a condition may have braces and a comment."""
    log = frame(spark, numbers(1))
    texts = [f"{quote(text)} as t{n}" for n, text in enumerate(ODD_TEXTS)]
    own = condition("path rlike '^[a-z]{1}/' and '{log}' = concat('{', 'log}') -- a remark")
    row = log.selectExpr(*texts, f"{own} as holds").collect()[0]
    assert (*row[:-1], row.holds) == (*ODD_TEXTS, True)


RULES = (
    "**",
    "n/*",
    "n/3",
    "*/3",
    "**3",
    "N/3 nocase",
    "n/**/3",
    "x/**",
    '"n/*"',
    "$jet/**",
    "n.3",
    "{n}'\\\\*",
    "${HOME}",
)
PATHS = (
    "n",
    "n/3",
    "n/3/3",
    "N/3",
    "n/33",
    "n/*",
    "x",
    "$jet/n",
    "$jets",
    "n\n3",
    "n.3",
    "n/(3)+",
    "ä/3",
    "{n}'\\",
    "${HOME}",
)


def test_rules_as_conditions_are_the_rules(spark: SparkSession) -> None:
    """A rule decided by Spark, with any of the path operators, holds for just the paths it holds for on the bus."""
    log = [event._replace(path=path) for event, path in zip(numbers(len(PATHS)), PATHS, strict=True)]
    operators = [{op: ["n", "3"] if row.takes_list else "n/3"} for op, row in PATH_TESTS.items()]
    rules = [*map(rule, RULES), *(read_rule({"path": {**op, "caseInsensitive": False}}) for op in operators)]
    columns = [f"{matches(made)} as `{n}`" for n, made in enumerate(rules)]
    found = {row["path"]: row for row in frame(spark, log).selectExpr("path", *columns).collect()}
    for n, made in enumerate(rules):
        wanted = [path for path in PATHS if made.matches_path(path) and (made.sees_daemon or path != "$jet/n")]
        assert [path for path in PATHS if found[path][str(n)]] == wanted, made


@settings(deadline=None, max_examples=500)
@given(
    glob=st.lists(st.sampled_from(["a", "b", "/", ".", "*", "**"]), max_size=9).map("".join),
    path=st.text("ab/.", max_size=9),
)
def test_the_patterns_of_globs_are_the_globs(glob: str, path: str) -> None:
    """The pattern that Spark is given for a glob, which never goes back on a text it has found, loses no match."""
    pattern = glob_pattern(glob).removesuffix(r"\z") + r"\Z"  # Java's spelling and Python's
    assert (re.match(pattern, path) is not None) is compile_glob(glob)(path)


def test_the_pattern_of_a_hostile_glob_does_not_backtrack() -> None:
    """A glob with fifty stars that does not match is over at once; backtracking would take years."""
    pattern = glob_pattern("**a*a" * 50 + "**b").removesuffix(r"\z") + r"\Z"
    assert re.match(pattern, "a" * 500) is None


def test_alarms_of_a_quality(spark: SparkSession, tmp_path: Path) -> None:
    """One word makes an alarm of the quality of a value, whatever the value is."""
    file = tmp_path / "alarms.toml"
    file.write_text('[alarm.broken]\nwhen = "bad"\nclear = "good"\n', encoding="utf-8")
    qualities = [None, "bad", '{"level":"bad","reason":"cable"}', "uncertain", "good", "bad"]
    log = [
        Event("plant", seq, BEGIN_US + seq, "change", "state", "pump", str(seq), "plc#1", quality=quality)
        for seq, quality in enumerate(qualities, 1)
    ]
    found = rows_of(tables.alarms(frame(spark, log), file))
    assert sorted((row["seq"], row["what"]) for row in found) == [(2, "raised"), (5, "cleared"), (6, "raised")]


def add(seq: int, ts_s: float, value: str, schema: str, event: str = "add") -> Event:
    """An event of a pump that is described."""
    value_or_none = None if event == "describe" else value
    detail = f'{{"schema":{schema}}}'
    return Event("plant", seq, BEGIN_US + round(ts_s * 1e6), event, "state", "pump", value_or_none, "plc#1", detail)


def change(seq: int, ts_s: float, value: str) -> Event:
    return Event("plant", seq, BEGIN_US + round(ts_s * 1e6), "change", "state", "pump", value, "plc#1")


def signals(spark: SparkSession, file: Path, log: list[Event], until_s: float) -> list[tuple[str, str, float, object]]:
    """Alarms of a file over a log: name, what, seconds since the beginning, unit."""
    until = datetime.fromtimestamp(BEGIN_US / 1e6 + until_s, UTC)
    rows = rows_of(tables.alarms(frame(spark, log), file, until=until))
    found = [(row["alarm"], row["what"], (row["ts"] - BEGIN_US) / 1e6, row["unit"]) for row in rows]
    return sorted(found, key=lambda one: (one[2], one[0]))


def test_alarms_of_a_range_that_is_described(spark: SparkSession, tmp_path: Path) -> None:
    """A value is judged by the description that was valid when it came, and its unit is shown with it."""
    file = tmp_path / "alarms.toml"
    file.write_text(
        '[alarm.strange]\nwhen = "outside normal"\n[alarm.hot]\nwhen = "unit = \'Cel\' and num > 60"\n'
        '[alarm.wrong]\nwhen = "num > maximum"\n',
        encoding="utf-8",
    )
    log = [
        add(1, 0, "70", '{"unit":"Cel","normal":[null,80],"maximum":90}'),
        change(2, 1, "85"),
        add(3, 2, "", '{"unit":"[degF]","normal":[null,176],"maximum":194}', "describe"),
        change(4, 3, "176"),
        change(5, 4, "200"),
        change(6, 5, "100"),
    ]
    assert signals(spark, file, log, 9) == [
        ("hot", "raised", 0, "Cel"),
        ("strange", "raised", 1, "Cel"),
        ("hot", "cleared", 3, "[degF]"),
        ("strange", "cleared", 3, "[degF]"),
        ("strange", "raised", 4, "[degF]"),
        ("wrong", "raised", 4, "[degF]"),
        ("strange", "cleared", 5, "[degF]"),
        ("wrong", "cleared", 5, "[degF]"),
    ]


def test_alarms_of_a_stale_state(spark: SparkSession, tmp_path: Path) -> None:
    """A state is stale once its time is over by the clock, and no longer when a value comes, be it the same."""
    file = tmp_path / "alarms.toml"
    file.write_text('[alarm.silent]\nwhen = "stale"\n[alarm.dead]\nwhen = "stale"\nhold = "3s"\n', encoding="utf-8")
    log = [
        add(1, 0, "7", '{"unit":"rpm","stale":2}'),
        change(2, 1, "7"),
        change(3, 2.5, "7"),
        change(4, 7, "7"),
        change(5, 13, "7"),
    ]
    silent = [
        ("silent", "raised", 4.5, "rpm"),
        ("silent", "cleared", 7, "rpm"),
        ("silent", "raised", 9, "rpm"),
        ("dead", "raised", 12, "rpm"),
    ]
    assert signals(spark, file, log, 12) == [*silent, ("dead", "cleared", 13, "rpm"), ("silent", "cleared", 13, "rpm")]
    assert signals(spark, file, log[:4], 12) == silent
    assert signals(spark, file, log[:4], 11.9) == silent[:3]
