"""Questions from the bus to a running pipeline: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus.errors import JetError, NotAllowed, NotFound
from jetbus.spark import Pipeline
from jetbus.spark.catalog import Tables
from jetbus.spark.location import read_location
from jetbus.spark.query_methods import QUESTIONS_MAX, Answers
from jetbus.spark.spark_session import count_cores
from jetbus.testing import running_daemon
from support.daemon import Daemon
from support.spark.journals import write_events
from support.spark.reference import Event
from support.spark.waits import WITHIN_S, until

BEGIN_US = 1_772_323_200_000_000
ALARM_FILE = """
[alarm.high]
rule = "tank/level"
when = "num > 100"
"""
MINUTES = 4


def levels() -> list[Event]:
    """A level that rises by one a second, and an event that ends the last window."""
    rising = [
        Event("plant", n + 1, BEGIN_US + n * 1_000_000, "change", "state", "tank/level", str(n), "tank#1")
        for n in range(60 * MINUTES)
    ]
    end_us = BEGIN_US + 60 * MINUTES * 1_000_000
    note = Event("plant", len(rising) + 1, end_us, "add", "state", "note", '{"by": ["x", 1.5]}', "tank#1")
    return [*rising, note]


class Site(NamedTuple):
    """A pipeline that runs, and a peer that knows nothing of Spark."""

    peer: jetbus.Peer
    tables: Path

    def ask(self, method: str, **asked: Any) -> list[dict[str, Any]]:
        answer = self.peer.call(f"spark/plant/query/{method}", timeout_s=WITHIN_S, **asked)
        return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    write_events(folder / "journal", levels(), bus="plant")
    (folder / "alarms.toml").write_text(ALARM_FILE)
    with (
        running_daemon() as daemon,
        jetbus.Peer(daemon.url) as peer,
        Pipeline(
            spark,
            folder / "journal",
            folder / "tables",
            alarm_file=folder / "alarms.toml",
            publish="spark/plant",
            publish_url=daemon.url,
            query_open=True,
        ) as pipeline,
    ):
        pipeline.start(every_s=0.1)
        peer.wait_for("spark/plant/pipeline/lag", timeout_s=WITHIN_S)
        yield Site(peer, folder / "tables")


def test_sql_over_the_bus(site: Site) -> None:
    """Any peer can ask SQL of the tables of a running pipeline; values come as JSON has them."""
    answer = site.peer.call(
        "spark/plant/query/sql",
        sql="with n as (select path, count(*) as n from events group by path) select * from n order by path;",
        timeout_s=WITHIN_S,
    )
    assert answer == {"columns": ["path", "n"], "rows": [["note", 1], ["tank/level", 60 * MINUTES]], "more": False}
    (row,) = site.ask(
        "sql", sql="select ts, doc, num, array(1, 2) as list, double('nan') as no from EVENTS where path = 'note'"
    )
    assert row == {"ts": "2026-03-01T00:04:00Z", "doc": {"by": ["x", 1.5]}, "num": None, "list": [1, 2], "no": None}


def test_questions_about_a_path(site: Site) -> None:
    """History, rollups and alarms of a period need no SQL."""
    values = site.ask("history", path="tank/level", since="2026-03-01T00:00:10.5Z", until="2026-03-01T00:00:13Z")
    assert [row["num"] for row in values] == [10, 11, 12]
    assert values[0]["valid_to"] == "2026-03-01T00:00:11Z"
    windows = site.ask("rollups", path="tank/level", since="2026-03-01T00:01:00Z", bus="plant")
    assert [(row["window_start"][14:16], row["count"], row["min"], row["max"]) for row in windows] == [
        (f"0{minute}", 60, 60 * minute, 60 * minute + 59) for minute in range(1, MINUTES)
    ]
    assert site.ask("rollups", path="tank/level", bus="lab") == []
    (raised,) = site.ask("alarms", since="2026-03-01T00:01:00Z")
    assert (raised["alarm"], raised["what"], json.loads(raised["value"])) == ("high", "raised", 101)
    tables = site.peer.call("spark/plant/query/tables")
    columns = {column["name"]: column["type"] for column in tables["events"]["columns"]}
    assert (columns["num"], columns["ts"]) == ("double", "timestamp")


def test_answers_have_limits(site: Site) -> None:
    """An answer has as many rows as asked for and says whether there are more; more than the most is refused."""
    few = site.peer.call("spark/plant/query/history", path="tank/level", limit=2, timeout_s=WITHIN_S)
    assert [row[few["columns"].index("num")] for row in few["rows"]] == [0, 1]
    assert few["more"]
    for limit, text in (
        (0, "a limit is a whole number from 1 to 10000"),
        (10_001, "a limit is a whole number from 1 to 10000"),
        ("all", "the argument limit is of type string, not integer"),
    ):
        with pytest.raises(JetError, match=text):
            site.ask("sql", sql="select 1", limit=limit)


def test_wrong_questions_are_explained(site: Site) -> None:
    """The caller is told what is wrong with a question; the pipeline goes on."""
    wrong = {
        "no such table": (
            "sql",
            {"sql": "select * from pumps"},
            "there is no table 'pumps'; there are events, history",
        ),
        "no such column": ("sql", {"sql": "select speed from events"}, "speed"),
        "no SQL": ("sql", {"sql": "what is the level?"}, "Syntax error at or near 'what'"),
        "no instant": ("history", {"path": "x", "since": "someday"}, "'someday'"),
        "no window": ("rollups", {"path": "x", "window": "5m"}, "there are no windows of '5m'; there are 1s, 1m, 1h"),
        "no path": ("history", {}, "missing a required argument: 'path'"),
    }
    for method, asked, message in wrong.values():
        with pytest.raises(JetError) as caught:
            site.ask(method, **asked)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    assert site.ask("sql", sql="select 1 as one") == [{"one": 1}]


BACKTRACKED = 38
"""Letters that a regular expression of the test needs tens of seconds for."""
ENDLESS = """
select count_if(sha2(concat(a.seq, b.seq), 512) like 'x%') from events a join events b on a.event = b.event
join events c on a.event = c.event join events d on a.event = d.event join events e on a.event = e.event
"""
"""Every change with every change, five times over: for hours."""


def is_free(answers: Answers) -> bool:
    """Return True if no question is in the making."""
    return len(answers._free) == QUESTIONS_MAX and not answers._busy


def test_an_answer_that_takes_too_long_is_cancelled(spark: SparkSession, site: Site) -> None:
    """A question that is not answered in time is refused, and gives its core back, however much it multiplies."""
    hurried = Answers(spark, read_location(site.tables), answer_s=0.5)
    with pytest.raises(JetError, match=r"longer than 0.5 s; ask for a shorter period"):
        asyncio.run(ask_patiently(hurried, ENDLESS))
    assert is_free(hurried)
    assert site.ask("sql", sql="select 1 as one") == [{"one": 1}]


async def ask_patiently(answers: Answers, sql: str) -> None:
    """Ask, and wait until all that is cancelled has ended, whatever the answer is."""
    try:
        await answers.sql(sql)
    finally:
        await asyncio.wait_for(asyncio.gather(*answers._cancelling), WITHIN_S)


def test_others_are_answered_meanwhile(spark: SparkSession, site: Site) -> None:
    """A question that takes its time keeps no other caller waiting; those that are open end with the pipeline."""
    answers = Answers(spark, read_location(site.tables), answer_s=WITHIN_S)
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as owner, jetbus.Peer(daemon.url) as caller:
        answers.offer(owner, "other")
        slow = caller.call_async("other/query/sql", sql=ENDLESS, timeout_s=WITHIN_S)
        assert "events" in caller.call("other/query/tables", timeout_s=WITHIN_S)
        until(lambda: answers._cores._value == 0, "the question does not begin")
        while not is_free(answers):
            answers.close()
        with pytest.raises(JetError):
            slow.result(WITHIN_S)


def test_large_values_are_bounded(spark: SparkSession, site: Site) -> None:
    """An answer has the rows that fit into a message; Spark never hands over the others, however large they are."""
    answers = Answers(spark, read_location(site.tables))
    large = spark.range(3000).selectExpr("id", "repeat('x', 1000000) as value", "struct(id as n) as part")
    answer = asyncio.run(answers._answered(lambda _: large.orderBy("id"), 2500))
    assert [(row[0], len(row[1]), row[2]) for row in answer["rows"]] == [(n, 1_000_000, {"n": n}) for n in range(3)]
    assert answer["more"]
    (row,) = asyncio.run(answers._answered(lambda _: large.where("id = 7"), 1))["rows"]
    assert (row[0], len(row[1])) == (7, 1_000_000)


def test_questions_that_are_lost_leave_a_core(spark: SparkSession, site: Site) -> None:
    """Questions that are lost in one row, however many, leave a core to the pipeline; others wait and are refused."""
    hurried = Answers(spark, read_location(site.tables), answer_s=1, wait_s=0.1)
    # The guard allows no regular expressions; this is what one would do. Java tries all ways to cut the text into
    # pieces: it remembers where it has been only in expressions without a reference to a group.
    lost = spark.range(1, numPartitions=1).selectExpr(
        rf"concat(repeat('a', {BACKTRACKED} + id), 'b') rlike '^(a|aa)+\\1c$' as x"
    )
    cores = max(1, count_cores(spark) - 1)
    for _ in range(cores):
        with pytest.raises(JetError, match="longer than 1 s"):
            asyncio.run(hurried._answered(lambda _: lost, 1))
    for _ in range(2):
        with pytest.raises(JetError, match="busy with other questions; ask again later"):
            asyncio.run(hurried._answered(lambda _: lost, 1))
    assert spark.range(1000, numPartitions=4).selectExpr("sum(id)").collect()[0][0] == 499_500
    assert len(hurried._busy) == cores, "the question has ended by itself; make it slower"


def test_more_questions_than_the_limit_are_refused(spark: SparkSession, site: Site) -> None:
    """Questions that wait for a core are bounded, too."""
    answers = Answers(spark, read_location(site.tables))
    answers._free.clear()
    with pytest.raises(JetError, match=f"{QUESTIONS_MAX} questions are being answered already; ask again later"):
        asyncio.run(answers.history("tank/level"))


def test_a_question_is_one_task_at_a_time(spark: SparkSession, site: Site) -> None:
    """Whatever a question joins, groups or unites, it is read into one partition."""
    answers = Answers(spark, read_location(site.tables))
    for sql in (
        "select path, count(*) from events group by path order by 2",
        "select * from events union all select * from events",
        "select a.seq from events a join history b on a.seq = b.seq where a.seq < 5",
        "select seq, lag(seq) over (partition by path order by seq) from history order by seq",
    ):
        rows = answers._queried(Tables(answers._free[0], read_location(site.tables)), sql)
        assert rows.rdd.getNumPartitions() == 1, sql


def test_questions_of_some_groups_only(spark: SparkSession, tmp_path: Path) -> None:
    """With query_groups the methods are for their members only; without any setting they are for nobody."""
    write_events(tmp_path / "journal", levels()[:1], bus="plant")
    users = tmp_path / "users.json"
    accounts = {name: {"password": name, "auth": {"callGroups": [name]}} for name in ("staff", "guest")}
    users.write_text(json.dumps({"users": accounts}))
    with Daemon.start("--users", str(users)) as daemon:
        url = f"jet://{daemon.listens['tcp']}"
        where = (tmp_path / "journal", tmp_path / "tables")
        with (
            jetbus.Peer(url, user="staff", password="staff") as staff,
            jetbus.Peer(url, user="guest", password="guest") as guest,
        ):
            with Pipeline(spark, *where, publish="s", publish_url=url, query_groups=["staff"]) as pipeline:
                pipeline.start(every_s=60)
                assert "events" in staff.call("s/query/tables")
                with pytest.raises(NotAllowed):
                    guest.call("s/query/tables")
            with Pipeline(spark, *where, publish="s", publish_url=url) as pipeline:
                pipeline.start(every_s=60)
                assert "s/pipeline/batch" in staff.get_all("s/**")
                with pytest.raises(NotFound):
                    staff.call("s/query/tables")
