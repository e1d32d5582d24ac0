"""A live daemon and Spark: its journal and its tree by url, and what a pipeline shows on its bus."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import jetbus
from jetbus import journal
from jetbus.errors import TimedOut
from jetbus.rules import equal
from jetbus.spark import BadOption, Pipeline, attach
from jetbus.spark.schemas import JOURNAL, TREE, schema_of
from jetbus.testing import running_daemon
from support.daemon import Daemon
from support.spark.compare import rows_of
from support.spark.waits import WITHIN_S, run_batches, until, until_gone

StartDaemon = Callable[..., Daemon]
SCHEMES = {"JSON": ("jet", "tcp"), "binary": ("jetb", "binary")}
EVENTS = 250


def url_of(daemon: Daemon, protocol: str = "JSON") -> str:
    scheme, listener = SCHEMES[protocol]
    return f"{scheme}://{daemon.listens[listener]}"


def count_up(peer: jetbus.Peer, path: str, upto: int) -> None:
    """A state that is 1, then 2 and so on."""
    state = peer.add_state(path, 1)
    for n in range(2, upto + 1):
        state.change(n)
    peer.get_all(path)  # answered when all of it has been handled


def recorded(daemon: Daemon, directory: Path, **wanted: Any) -> list[dict[str, Any]]:
    """Return the events that the journal has on disk so far."""
    with jetbus.Peer(url_of(daemon)) as peer:
        peer.call("$jet/journal/offsets")
    found: list[dict[str, Any]] = journal.open(directory).table(**wanted).to_pylist()
    return found


class Plant:
    """A daemon with a journal in which something has happened."""

    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self.daemon = daemon
        self.directory = directory
        self.owner = jetbus.Peer(url_of(daemon), name="plant")
        self.owner.connect()
        count_up(self.owner, "plant/count", EVENTS)
        self.owner.add_state("plant/ü", {"ä": [1, None]})
        self.owner.add_state("other", "x")
        self.owner.get_all("other")


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    directory = tmp_path_factory.mktemp("live") / "journal"
    with Daemon.start("--journal", str(directory), "--journal-bus", "plant") as daemon:
        made = Plant(daemon, directory)
        yield made
        made.owner.close()


def read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("jet").option("url", url).options(**options).load()


def drain(stream: DataFrame, checkpoint: Path) -> list[list[tuple[str, int]]]:
    """Run a stream to its present end; gives path and value of each batch."""
    batches = []

    def take(batch: DataFrame) -> None:
        batches.append(sorted((row.path, int(row.value)) for row in batch.collect()))

    run_batches(stream, checkpoint, take)
    return batches


# -- the journal


@pytest.mark.parametrize("protocol", SCHEMES)
def test_the_journal_of_a_daemon_is_a_batch(spark: SparkSession, plant: Plant, protocol: str) -> None:
    """With url a batch has the events of a daemon's journal as they are on its disk, in several tasks."""
    frame = read(spark, url_of(plant.daemon, protocol), eventsPerPartition="100")
    assert frame.schema == schema_of(JOURNAL)
    assert frame.rdd.getNumPartitions() > 2
    got = {row["seq"]: row for row in rows_of(frame)}
    wanted = recorded(plant.daemon, plant.directory)
    for row in wanted[: EVENTS + 2]:
        mine = got[row["seq"]]
        assert mine.pop("bus") == "plant"
        assert {**mine, "ts": None} == {**row, "ts": None}
        assert mine["ts"] == round(row["ts"].timestamp() * 1e6)


READS: dict[str, tuple[dict[str, str], Callable[[int], bool]]] = {
    "startsWith": ({"startsWith": "plant/c"}, lambda _n: True),
    "value": ({"equals": "plant/count", "value": '{"greaterThan": 240}'}, lambda n: n > 240),
    "glob, which the wire has no word for": ({"rule": "p*t/c*"}, lambda _n: True),
    "glob and value": ({"rule": "*/c*nt value<9"}, lambda n: n < 9),
    "rule and word": ({"rule": "*/count value<50", "value": '{"greaterThan": 40}'}, lambda n: 40 < n < 50),
}


@pytest.mark.parametrize("case", READS)
def test_options_choose_events_of_a_daemon(spark: SparkSession, plant: Plant, case: str) -> None:
    """The words of fetch rules choose which events of a daemon come, also those that are tested here only."""
    options, wanted = READS[case]
    frame = read(spark, url_of(plant.daemon), start="earliest", **options).select("value")
    assert sorted(int(row.value) for row in frame.collect()) == [n for n in range(1, EVENTS + 1) if wanted(n)]


def test_instants_choose_events_of_a_daemon(spark: SparkSession, plant: Plant) -> None:
    """Since, until, start and asOf are instants or seqs of the daemon's journal."""
    url, events = url_of(plant.daemon), recorded(plant.daemon, plant.directory, rule="plant/count")
    middle, last = events[99], events[199]
    then, later = (journal.instants.write_instant(round(row["ts"].timestamp() * 1e6)) for row in (middle, last))
    between = [json.loads(row["value"]) for row in events if middle["ts"] <= row["ts"] < last["ts"]]
    frame = read(spark, url, since=then, until=later, equals="plant/count")
    assert sorted(int(row.value) for row in frame.collect()) == between
    for start in (str(middle["seq"]), json.dumps({"plant": middle["seq"]})):
        assert read(spark, url, start=start, equals="plant/count").count() == EVENTS - 99
    assert read(spark, url, start=then, equals="plant/count").count() == sum(
        row["ts"] >= middle["ts"] for row in events
    )
    tree = read(spark, url, asOf=then, startsWith="plant/")
    assert tree.schema == schema_of(TREE)
    newest = max(json.loads(row["value"]) for row in events if row["ts"] <= middle["ts"])
    assert [(row.bus, row.path, int(row.value)) for row in tree.collect()] == [("plant", "plant/count", newest)]
    both = read(spark, url, asOf="-0s", rule="*/*").collect()
    assert sorted(row.path for row in both) == ["plant/count", "plant/ü"]


def test_the_journal_of_daemons_is_a_stream(spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon) -> None:
    """A stream reads several daemons, in batches of the size asked for, and goes on where it was."""
    daemons = [start_daemon("--journal", str(tmp_path / name), "--journal-bus", name) for name in ("a", "b")]
    urls = json.dumps([url_of(daemons[0]), url_of(daemons[1], "binary")])
    stream = (
        spark.readStream.format("jet")
        .options(url=urls, startsWith="n/", maxEventsPerBatch="40", eventsPerPartition="15")
        .load()
    )
    with jetbus.Peer(url_of(daemons[0])) as a, jetbus.Peer(url_of(daemons[1])) as b:
        count_up(a, "n/a", 60)
        count_up(b, "n/b", 10)
        batches = drain(stream, tmp_path / "checkpoint")
        assert len(batches) > 1
        assert max(map(len, batches)) <= 40
        count_up(b, "n/late", 5)
        batches += [[("n", 0)], *drain(stream, tmp_path / "checkpoint")]
        gone = [("n/a", n) for n in range(1, 61)] + [("n/b", n) for n in range(1, 11)]
        assert sorted(row for batch in batches for row in batch) == sorted(
            [("n", 0), *gone, *(("n/late", n) for n in range(1, 6))]
        )


def test_a_stream_waits_for_its_daemon(spark: SparkSession, tmp_path: Path) -> None:
    """A running stream outlives a restart of its daemon and reads on, each event once."""
    seen: list[tuple[str, int]] = []
    directory = tmp_path / "journal"
    with running_daemon(journal=directory, journal_bus="plant") as daemon:
        with jetbus.Peer(daemon.url) as peer:
            count_up(peer, "n/before", 5)
        query = (
            spark.readStream.format("jet")
            .options(url=daemon.url, startsWith="n/")
            .load()
            .where("event != 'remove'")
            .writeStream.foreachBatch(lambda batch, _n: seen.extend((r.path, int(r.value)) for r in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            await_seen(query, seen, ("n/before", 5))
            daemon.stop()
            query.awaitTermination(1)
            assert query.isActive, query.exception()
            daemon.start()
            with jetbus.Peer(daemon.url) as peer:
                count_up(peer, "n/after", 5)
                await_seen(query, seen, ("n/after", 5))
        finally:
            query.stop()
    assert seen == [(path, n) for path in ("n/before", "n/after") for n in range(1, 6)]


def await_seen(query: Any, seen: list[tuple[str, int]], wanted: tuple[str, int]) -> None:
    for _ in range(WITHIN_S):
        if wanted in seen:
            return
        query.awaitTermination(1)
        assert query.isActive, query.exception()
    raise AssertionError(f"{wanted} does not come")


def test_dropped_events_of_a_daemon_stop_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Events that a daemon has dropped before they were read are told as those of a folder are."""
    directory = tmp_path / "journal"
    for n in range(3):
        with running_daemon(journal=directory, journal_bus="plant") as daemon, jetbus.Peer(daemon.url) as peer:
            count_up(peer, f"n/{n}", 20)
    first = min(directory.glob("*.arrows"))
    first.unlink()
    first.with_suffix(".index").unlink(missing_ok=True)
    with running_daemon(journal=directory, journal_bus="plant") as daemon:
        options = {"url": daemon.url, "start": "1", "startsWith": "n/", "value": '{"isType": "number"}'}
        stream = spark.readStream.format("jet").options(**options)
        with pytest.raises(Exception, match=r"events 1 to \d+ of bus 'plant' were dropped by retention"):
            drain(stream.load(), tmp_path / "checkpoint")
        batches = drain(stream.option("failOnDataLoss", "false").load(), tmp_path / "other")
        assert sorted({path for batch in batches for path, _ in batch}) == ["n/1", "n/2"]


# -- the tree now


def test_the_tree_of_a_live_daemon(spark: SparkSession, plant: Plant) -> None:
    """Without a journal, or with asOf now, a batch is the tree of a daemon at the moment the job runs."""
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as peer:
        peer.add_state("plant/a", 1)
        peer.add_state("plant/b", {"ä": [1, None]})
        peer.add_state("plant/blob", b"\x00\x01")
        peer.add_state("other", "x")
        frame = read(spark, daemon.url, startsWith="plant/")
        assert frame.schema == schema_of(TREE)
        assert {row.path: json.loads(row.value) for row in frame.collect()} == {
            "plant/a": 1,
            "plant/b": {"ä": [1, None]},
            "plant/blob": {"mime": "application/octet-stream", "base64": "AAE="},
        }
        peer.add_state("plant/c", 2)
        assert frame.count() == 4
    now = read(spark, url_of(plant.daemon), asOf="now", startsWith="plant/")
    assert {row.path: json.loads(row.value) for row in now.collect()} == {
        "plant/count": EVENTS,
        "plant/ü": {"ä": [1, None]},
    }


# -- what is wrong


def test_a_daemon_that_is_not_there(spark: SparkSession) -> None:
    """A daemon that cannot be reached is named by load, in a batch and in a stream."""
    with running_daemon() as daemon:
        url = daemon.url
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match=r"option 'url': no daemon at .*; start one with") as caught:
            reader.format("jet").option("url", url).load()
        assert url.removeprefix("jet://") in str(caught.value)


NO_JOURNAL: dict[str, dict[str, str]] = {"since": {"since": "-1h"}, "start": {"start": "1"}, "asOf": {"asOf": "-1h"}}


@pytest.mark.parametrize("case", NO_JOURNAL)
def test_the_past_needs_a_journal(spark: SparkSession, case: str) -> None:
    """Asking for the past of a daemon that keeps no journal is refused by load, with what to do."""
    with running_daemon() as daemon, pytest.raises(Exception, match="keeps no journal; start it with --journal DIR"):
        read(spark, daemon.url, **NO_JOURNAL[case])


def test_a_stream_needs_a_journal(spark: SparkSession, tmp_path: Path) -> None:
    """A stream of a daemon that keeps no journal is refused before it starts."""
    with (
        running_daemon() as daemon,
        pytest.raises(Exception, match=r"option 'url': .*keeps no journal.*--journal DIR"),
    ):
        drain(spark.readStream.format("jet").option("url", daemon.url).load(), tmp_path / "checkpoint")


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "nobody": ({}, "option 'user': the journal of"),
    "not of the group": ({"user": "bob", "password": "b"}, "is open to users of its journal_groups only"),
    "unknown": ({"user": "eve", "password": "x"}, "option 'user': wrong user or password"),
    "wrong password": ({"user": "ann", "password": "x"}, "option 'user': wrong user or password"),
    "password without user": ({"password": "x"}, "option 'user': a password is given"),
}


def test_only_some_may_read_a_journal(spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon) -> None:
    """User and password are those of the daemon; who may not look back is told which option to change."""
    accounts = {
        "ann": {"password": "a", "auth": {"fetchGroups": ["staff"]}},
        "bob": {"password": "b", "auth": {"fetchGroups": ["guests"]}},
    }
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"users": accounts}))
    daemon = start_daemon(
        *("--journal", str(tmp_path / "journal"), "--users", str(users), "--journal-groups", "staff"),
    )
    url = url_of(daemon)
    for options, message in REFUSED.values():
        with pytest.raises(Exception, match="option") as caught:
            read(spark, url, **options)
        assert message in str(caught.value)
    assert read(spark, url, user="ann", password="a").where("event = 'start'").count() == 1
    named = url.replace("jet://", "jet://ann:a@")
    assert read(spark, named).where("event = 'start'").count() == 1
    assert read(spark, url, asOf="now").count() == 0


WRONG_URLS = {
    "no daemon's": ("http://x", "is not the address of a daemon"),
    "not closed": ('["jet://a"', "write it as JSON such as"),
    "empty": ("", "option 'url'"),
}


@pytest.mark.parametrize("case", WRONG_URLS)
def test_a_wrong_url_is_named(spark: SparkSession, case: str) -> None:
    """An address that cannot be meant is refused by load."""
    url, message = WRONG_URLS[case]
    with pytest.raises(Exception, match="option") as caught:
        read(spark, url)
    assert message in str(caught.value)


def test_two_daemons_of_one_name_are_refused(spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon) -> None:
    """Two daemons whose buses have the same name cannot be told apart and are refused."""
    urls = [
        url_of(start_daemon("--journal", str(tmp_path / name), "--journal-bus", "plant")) for name in ("one", "two")
    ]
    with pytest.raises(Exception, match=r"are both of a bus named 'plant'; .* as journal_bus"):
        read(spark, json.dumps(urls))


# -- a bus on which nothing happens

HELD = """
[alarm.hot]
rule = "plant/**"
when = "num > 80"
hold = "1s"

[alarm.silent]
rule = "plant/**"
when = "stale"
"""


def test_alarms_of_a_quiet_bus(spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon) -> None:
    """The clock ends hold times and windows, and tells what is stale, though no other event comes."""
    directory = tmp_path / "journal"
    daemon = start_daemon("--journal", str(directory), "--journal-bus", "plant")
    (tmp_path / "alarms.toml").write_text(HELD)
    with running_daemon() as shown, jetbus.Peer(shown.url) as watcher, jetbus.Peer(url_of(daemon)) as owner:
        owner.add_state("plant/a", 90, unit="Cel", stale_s=1.5)
        owner.get_all("plant/a")
        # The journal is read from its folder, so that not even reading it makes events.
        with Pipeline(
            spark,
            directory,
            tmp_path / "tables",
            alarm_file=tmp_path / "alarms.toml",
            publish="spark",
            publish_url=shown.url,
        ) as pipeline:
            pipeline.start(every_s=0.1)
            raised = watcher.wait_for("spark/alarms/hot/plant/plant/a", timeout_s=WITHIN_S).value
            silent = watcher.wait_for("spark/alarms/silent/plant/plant/a", timeout_s=WITHIN_S).value
            window = watcher.wait_for("spark/rollups/1s/plant/plant/a", timeout_s=WITHIN_S).value
        last = max(recorded(daemon, directory, rule="plant/a"), key=lambda row: int(row["seq"]))
        assert pipeline.store.progress.seqs["plant"] == last["seq"], "there were other events"
    added_us = round(last["ts"].timestamp() * 1e6)
    for alarm, due_us in ((raised, 1_000_000), (silent, 1_500_000)):
        assert (alarm["what"], alarm["value"], alarm["unit"]) == ("raised", 90, "Cel")
        assert journal.instants.read_instant(alarm["ts"]) == added_us + due_us
    assert (window["count"], window["last"]) == (1, 90)


# -- through the pipeline and back to the bus

ALARM_FILE = """
[alarm.hot]
rule = "plant/*/temperature"
when = "num > 80"
clear = "num < 75"
severity = "warning"
"""


@pytest.mark.timeout(600)
def test_from_the_bus_through_spark_to_the_bus(spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon) -> None:
    """A pipeline reads a daemon and shows its lag, rollups and alarms there; they change, and vanish when it ends."""
    daemon = start_daemon("--journal", str(tmp_path / "journal"), "--journal-bus", "plant")
    url, alarms = url_of(daemon), tmp_path / "alarms.toml"
    alarms.write_text(ALARM_FILE)
    received: list[tuple[str, str, Any]] = []
    with jetbus.Peer(url) as owner, jetbus.Peer(url) as watcher:
        watcher.fetch("spark/**", lambda event: received.append((event.kind, event.path, event.value)), policy="every")
        hot = owner.add_state("plant/a/temperature", 90)
        alarm, newest = "spark/alarms/hot/plant/plant/a/temperature", "spark/rollups/1s/plant/plant/a/temperature"
        with Pipeline(spark, url, tmp_path / "tables", alarm_file=alarms, publish="spark") as pipeline:
            pipeline.start(every_s=0.1)
            raised = watcher.wait_for(alarm, fields={"what": equal("raised")}, timeout_s=WITHIN_S).value
            assert (raised["value"], raised["severity"]) == (90, "warning")
            hot.change(70)
            cleared = watcher.wait_for(alarm, fields={"what": equal("cleared")}, timeout_s=WITHIN_S).value
            assert (cleared["value"], cleared["raised_at"]) == (70, raised["ts"])
            await_window(watcher, newest, lambda: hot.change(71))
            batch, lag = (
                watcher.get_all(f"spark/pipeline/{name}")[f"spark/pipeline/{name}"] for name in ("batch", "lag")
            )
            assert batch["events"] >= 1
            assert lag["events"] >= 0
            assert lag["seconds"] >= 0
            for path in watcher.get_all("spark/**"):
                assert path.count("spark/") == 1, "what is published must not be published again"
        until_gone(watcher, "spark/**")
        gone = {("remove", path) for path in (alarm, newest, "spark/pipeline/lag")}
        until(lambda: gone <= {(kind, path) for kind, path, _ in received}, f"nobody was told of all of {gone}")
        changes = [(path, json.dumps(value)) for kind, path, value in received if kind != "remove" and path == alarm]
        assert len(changes) == len(set(changes)) == 2
        check_again(spark, url, tmp_path, watcher)
    events = attach(spark, tmp_path / "tables").frame("events")
    seqs = sorted(row.seq for row in events.select("seq").collect())
    assert seqs == list(range(1, len(seqs) + 1))


def await_window(watcher: jetbus.Peer, path: str, change: Callable[[], None]) -> None:
    """Change something now and then until a window of a second is complete and shown."""
    for _ in range(WITHIN_S):
        change()
        with suppress(TimedOut):
            shown = watcher.wait_for(path, timeout_s=2).value
            assert shown["count"] >= 1
            assert 70 <= shown["last"] <= 90
            return
    raise AssertionError(f"{path} does not come")


def check_again(spark: SparkSession, url: str, tmp_path: Path, watcher: jetbus.Peer) -> None:
    """Another run shows at once what is known; two at one place are refused."""
    with Pipeline(spark, url, tmp_path / "tables", publish="spark") as pipeline:
        pipeline.start(every_s=60)
        assert "spark/rollups/1s/plant/plant/a/temperature" in watcher.get_all("spark/rollups/**")
        with (
            Pipeline(spark, url, tmp_path / "other", publish="spark") as second,
            pytest.raises(BadOption, match="spark/pipeline/batch is there already; choose another prefix"),
        ):
            second.start()


WRONG_PLACES: dict[str, tuple[list[str], dict[str, str], str]] = {
    "no prefix": (["DAEMON"], {"publish": "/"}, "option 'publish': '/' cannot hold states"),
    "nobody there": (
        ["FOLDER"],
        {"publish": "x", "publish_url": "jet://127.0.0.1:1"},
        "option 'publish': no daemon at",
    ),
    "several": (["jet://a", "jet://b"], {"publish": "x"}, "option 'publish_url': several daemons are read"),
    "folders and daemons": (["FOLDER", "jet://a"], {}, "folders and daemons cannot be read by one pipeline"),
}


@pytest.mark.parametrize("case", WRONG_PLACES)
def test_a_place_to_publish_must_be_one(spark: SparkSession, tmp_path: Path, plant: Plant, case: str) -> None:
    """A prefix that is none, or a daemon that is not there, is named before anything runs."""
    journals, options, message = WRONG_PLACES[case]
    there = {"DAEMON": url_of(plant.daemon), "FOLDER": str(plant.directory)}
    places = [there.get(one, one) for one in journals]
    with (
        pytest.raises(BadOption) as caught,
        Pipeline(spark, places, tmp_path / "tables", **options) as pipeline,  # type: ignore[arg-type]
    ):
        pipeline.start()
    assert message in str(caught.value)


def test_two_daemons_into_one_set_of_tables(spark: SparkSession, tmp_path: Path, start_daemon: StartDaemon) -> None:
    """The events of two live daemons are in one set of tables, each once, over several runs."""
    daemons = {name: start_daemon("--journal", str(tmp_path / name), "--journal-bus", name) for name in ("a", "b")}
    urls = [url_of(daemon) for daemon in daemons.values()]
    with jetbus.Peer(urls[0]) as a, jetbus.Peer(urls[1]) as b:
        for run in (1, 2):
            for name, peer in (("a", a), ("b", b)):
                count_up(peer, f"n/{run}/{name}", 10)
            with Pipeline(spark, urls, tmp_path / "tables") as pipeline:
                pipeline.run_once()
    counted = attach(spark, tmp_path / "tables").frame("events").where("path like 'n/%'")
    got = {(row.bus, row.path): row["count"] for row in counted.groupBy("bus", "path").count().collect()}
    assert got == {(name, f"n/{run}/{name}"): 10 for name in ("a", "b") for run in (1, 2)}
