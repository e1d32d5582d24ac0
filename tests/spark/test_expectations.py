"""Expectations: what becomes of rows that do not meet them, and what is said of a wrong file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus.spark import BadOption, ExpectationFailed, Pipeline, Tables
from jetbus.spark.expectations import EXPECTATIONS_MAX, Expectation, read_expectations
from jetbus.testing import running_daemon
from support.spark.journals import numbers, write_events
from support.spark.on_disk import read_delta
from support.spark.reference import Event
from support.spark.waits import WITHIN_S

FILE = """
[expect.plausible]
table = "events"
condition = "num between 3 and 100"
action = "drop"

[expect.even]
table = "events"
condition = "num % 2 = 0"

[expect.short]
table = "history"
condition = "seq != 5"
action = "drop"
"""


def test_a_file_of_expectations(spark: SparkSession, tmp_path: Path) -> None:
    """A file has an expectation per section; without an action rows are only counted."""
    (tmp_path / "expectations.toml").write_text(FILE)
    assert read_expectations(tmp_path / "expectations.toml", spark)[:2] == (
        Expectation("plausible", "events", "num between 3 and 100", "drop"),
        Expectation("even", "events", "num % 2 = 0", "warn"),
    )


def test_values_that_do_not_fit_their_schema(spark: SparkSession, tmp_path: Path) -> None:
    """One expectation holds all states to their schemas; values that do not fit are kept out, with the reason."""
    detail = json.dumps({"schema": {"type": "number", "maximum": 3000}})
    first, *changes = (
        Event("plant", seq, seq * 1_000_000, "change", "state", "pump/speed", value, "pump#1")
        for seq, value in enumerate(("1", "3001", '"fast"', "3000", "2", "1"), 1)
    )
    write_events(tmp_path / "journal", [first._replace(event="add", detail=detail), *changes], bus="plant")
    file = tmp_path / "expectations.toml"
    file.write_text('[expect.described]\ntable = "history"\ncondition = "misfit is null"\naction = "drop"\n')
    # Batches of two: the description, and what does not fit it, are carried to the next one.
    with Pipeline(
        spark, tmp_path / "journal", tmp_path / "tables", expectation_file=file, batch_events_max=2
    ) as pipeline:
        pipeline.run_once()
    assert sorted(read_delta(tmp_path / "tables", "history")["value"].to_pylist()) == ["1", "2", "3000"]
    away = [json.loads(row["row"]) for row in read_delta(tmp_path / "tables", "quarantine").to_pylist()]
    assert {row["value"]: row["misfit"] for row in away} == {"3001": "maximum", '"fast"': "type"}


def test_rows_that_do_not_meet_expectations(spark: SparkSession, tmp_path: Path) -> None:
    """Warn counts rows, drop puts them into quarantine with the reason; counts are a table and are published.

    Rows of several tables can be dropped in one batch. With fail the pipeline ends before anything is committed.
    """
    log = numbers(20)
    write_events(tmp_path / "journal", log[:19], bus="plant")
    (tmp_path / "expectations.toml").write_text(FILE)
    tables = tmp_path / "tables"
    with (
        running_daemon() as daemon,
        jetbus.Peer(daemon.url) as watcher,
        Pipeline(
            spark,
            tmp_path / "journal",
            tables,
            expectation_file=tmp_path / "expectations.toml",
            publish="spark",
            publish_url=daemon.url,
        ) as pipeline,
    ):
        pipeline.start(every_s=0.1)
        watcher.wait_for("spark/expectations/history/short", timeout_s=WITHIN_S)
        assert watcher.get_all("spark/expectations/**") == {
            "spark/expectations/events/plausible": {"rows": 19, "failed": 2, "failed_so_far": 2},
            "spark/expectations/events/even": {"rows": 19, "failed": 10, "failed_so_far": 10},
            # Values 3 to 12 are ended by the next one of their path.
            "spark/expectations/history/short": {"rows": 10, "failed": 1, "failed_so_far": 1},
        }
    counted = {(row["expectation"], row["action"]): row for row in read_delta(tables, "expectations").to_pylist()}
    assert {key: (row["batch"], row["rows"], row["failed"]) for key, row in counted.items()} == {
        ("plausible", "drop"): (0, 19, 2),
        ("even", "warn"): (0, 19, 10),
        ("short", "drop"): (0, 10, 1),
    }
    assert sorted(read_delta(tables, "events")["seq"].to_pylist()) == list(range(3, 20))
    assert sorted(read_delta(tables, "history")["seq"].to_pylist()) == [3, 4, 6, 7, 8, 9, 10, 11, 12]
    away = sorted(
        (row["table"], row["expectation"], row["condition"], row["batch"], json.loads(row["row"])["seq"])
        for row in read_delta(tables, "quarantine").to_pylist()
    )
    assert away == [
        ("events", "plausible", "num between 3 and 100", 0, 1),
        ("events", "plausible", "num between 3 and 100", 0, 2),
        ("history", "short", "seq != 5", 0, 5),
    ]
    (tmp_path / "expectations.toml").write_text(FILE.replace('"drop"', '"fail"').replace("100", "19"))
    write_events(tmp_path / "journal", log[19:], bus="plant")
    before = Tables(spark, tables).progress
    with (
        pytest.raises(ExpectationFailed, match=r"^1 of 1 rows of the table 'events' do not meet .* 'plausible'"),
        Pipeline(spark, tmp_path / "journal", tables, expectation_file=tmp_path / "expectations.toml") as pipeline,
    ):
        pipeline.run_once()
    assert Tables(spark, tables).progress == before
    assert read_delta(tables, "events").num_rows == 17


WRONG_FILES = {
    "no TOML": ("[expect", "is not TOML"),
    "no expectations": ("[expects.x]\ntable = 'events'", "begin each with [expect.NAME]"),
    "unknown word": ("[expect.x]\nwhen = 'flag'", "expectation 'x': there is no 'when'; there are table, condition"),
    "no text": ("[expect.x]\ntable = 5", "expectation 'x': table takes text in quotes, not 5"),
    "no table": ("[expect.x]\ncondition = 'flag'", "expectation 'x': table is missing"),
    "no condition": ("[expect.x]\ntable = 'events'", "expectation 'x': condition is missing"),
    "unknown table": (
        "[expect.x]\ntable = 'pumps'\ncondition = 'flag'",
        "expectation 'x': there is no table 'pumps' to look at; there are events, history",
    ),
    "unknown action": (
        "[expect.x]\ntable = 'events'\ncondition = 'flag'\naction = 'delete'",
        "expectation 'x': there is no action 'delete'; there are warn, drop, fail",
    ),
    "unknown column": ("[expect.x]\ntable = 'events'\ncondition = 'speed > 3'", "'speed > 3' is not understood"),
    "no SQL": ("[expect.x]\ntable = 'events'\ncondition = 'num >'", "'num >' is not understood"),
    "no answer": ("[expect.x]\ntable = 'events'\ncondition = 'num + 1'", "'num + 1' is a double, not a condition"),
    "too many": (
        "\n".join(f"[expect.x{n}]" for n in range(EXPECTATIONS_MAX + 1)),
        "201 expectations are more than 200; merge some by 'and'",
    ),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file_is_named(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """An error in a file names the expectation and says what to write instead."""
    text, message = WRONG_FILES[case]
    file = tmp_path / "expectations.toml"
    file.write_text(text)
    with pytest.raises(BadOption) as caught:
        read_expectations(file, spark)
    assert message in str(caught.value)
