"""The HTTP API: history, the tree of the past, exports, and what is refused."""

from __future__ import annotations

import io
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme

import jetbus
from jetbus.journal.instants import wall_clock_us, write_instant
from support.daemon import Daemon
from support.jet import Jet
from support.radar import run_radar, serve_radar

JET = Path(sys.executable).with_name("jet")


def ask(radar: str, name: str, **parameters: Any) -> bytes:
    """Return the body of an answer."""
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{radar}api/{name}?{query}", timeout=60) as answer:
        body: bytes = answer.read()
        return body


def refused(radar: str, name: str, **parameters: Any) -> tuple[int, str]:
    """Return the status and text of a refusal."""
    with pytest.raises(urllib.error.HTTPError) as refusal:
        ask(radar, name, **parameters)
    with refusal.value as answer:
        return answer.code, json.loads(answer.read())["error"]


@pytest.fixture
def speed(owner: jetbus.Peer) -> jetbus.State:
    state = owner.add_state("pump/speed", 0, on_set=lambda _rpm: None)
    for rpm in (5, 7, 3):
        state.change(rpm)
    owner.add_state("pump/mode", "auto")
    owner.get_all("pump/**")  # the daemon has all of it
    return state


@pytest.mark.usefixtures("speed")
def test_the_history_of_a_number(radar: str) -> None:
    """A series has first, lowest, highest and last value per bucket."""
    table = pa.ipc.open_stream(ask(radar, "series", path="pump/speed", points=1000)).read_all()
    assert table["last"].to_pylist() == [0, 5, 7, 3]
    coarse = pa.ipc.open_stream(ask(radar, "series", path="pump/speed", points=1)).read_all()
    assert coarse["max"].to_pylist()[-1] in (3, 7)


def test_history_grows(radar: str, speed: jetbus.State, owner: jetbus.Peer) -> None:
    """Changes since the last request are in the next response."""
    ask(radar, "series", path="pump/speed")
    speed.change(9)
    owner.get_all("pump/**")
    table = pa.ipc.open_stream(ask(radar, "series", path="pump/speed")).read_all()
    assert table["last"].to_pylist() == [0, 5, 7, 3, 9]


@pytest.mark.usefixtures("speed")
def test_texts_are_bands(radar: str) -> None:
    """A state that is no number has stretches of values."""
    table = pa.ipc.open_stream(ask(radar, "bands", path="pump/mode")).read_all()
    assert table["value"].to_pylist() == ['"auto"']


@pytest.mark.usefixtures("speed")
def test_events_and_exports(radar: str) -> None:
    """Events come as JSON, and as files in three formats with the same rows."""
    events = json.loads(ask(radar, "events", rule="pump/speed"))
    assert [(event["event"], event["value"]) for event in events["events"]] == [
        ("add", 0),
        ("change", 5),
        ("change", 7),
        ("change", 3),
    ]
    assert events["complete"]
    lines = ask(radar, "export", rule="pump/speed", format="jsonl").splitlines()
    assert [json.loads(line)["value"] for line in lines] == [0, 5, 7, 3]
    csv = ask(radar, "export", rule="pump/speed", format="csv").decode().splitlines()
    assert csv[0] == "ts,path,event,value,unit,quality,peer,source_ts"
    assert len(csv) == 5
    parquet = pq.read_table(io.BytesIO(ask(radar, "export", rule="pump/speed", format="parquet")))
    assert parquet["value"].to_pylist() == ["0", "5", "7", "3"]


def test_csv_has_one_shape_everywhere(url: str, owner: jetbus.Peer, tmp_path: Path) -> None:
    """Radar, `jet history` and `jet journal export` write the same CSV, with units, qualities and source times."""
    state = owner.add_state("pump/speed", 0, unit="rpm")
    owner.info()
    began = str(wall_clock_us() + 1)
    state.change(800, quality={"level": "bad", "reason": "cable"}, ts="2026-03-01T12:00:00Z")
    state.change("stopped, by hand")
    state.change({"rpm": 7})
    state.remove()
    jet, folder = Jet(url, tmp_path), str(tmp_path / "journal")
    since = write_instant(int(began))
    printed = jet("history", "pump/speed", "--since", since, "-o", "csv").out
    lines = printed.splitlines()
    assert lines[0] == "ts,path,event,value,unit,quality,peer,source_ts"
    assert lines[1].split(",", 1)[1].startswith('pump/speed,change,800,rpm,"{""level"":""bad"",""reason"":""cable""}",')
    assert lines[1].endswith(",2026-03-01T12:00:00.000000Z")
    assert ',"stopped, by hand",rpm,,' in lines[2]
    assert lines[4].split(",")[2:5] == ["remove", '"{""rpm"":7}"', "rpm"]
    assert jet("history", "pump/speed", "--since", since, "-o", "csv", "--journal", folder).out == printed
    assert jet("journal", "export", folder, "--rule", "pump/speed", "--since", since, "-o", "csv").out == printed
    file = tmp_path / "out.csv"
    assert jet("journal", "export", folder, "--rule", "pump/speed", "--since", since, "--to", str(file)).code == 0
    assert file.read_text() == printed
    for source in ([], ["--journal", folder]):
        with serve_radar(url, *source) as radar:
            assert ask(radar, "export", path="pump/speed", since=began, format="csv").decode() == printed


def test_the_tree_of_the_past(radar: str, speed: jetbus.State, owner: jetbus.Peer) -> None:
    """The tree of an instant is what was on the bus then."""
    then = json.loads(ask(radar, "journal"))["now"]
    speed.change(99)
    owner.get_all("pump/**")
    past = {row["path"]: row["value"] for row in json.loads(ask(radar, "tree", at=then))["elements"]}
    now = {row["path"]: row["value"] for row in json.loads(ask(radar, "tree"))["elements"]}
    assert past == {"pump/speed": 3, "pump/mode": "auto"}
    assert now == {"pump/speed": 99, "pump/mode": "auto"}


REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    "no path": ("series", {}, "path is missing"),
    "reversed": ("series", {"path": "a", "since": "now", "until": "-1h"}, "since must be before until"),
    "no instant": ("tree", {"at": "soon"}, "soon"),
    "no number": ("series", {"path": "a", "points": "many"}, "whole number"),
    "no format": ("export", {"format": "xls"}, "csv, jsonl, parquet"),
}


@pytest.mark.parametrize(("name", "parameters", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_questions(radar: str, name: str, parameters: dict[str, str], text: str) -> None:
    """A wrong question is answered with what is wrong."""
    status, problem = refused(radar, name, **parameters)
    assert status == 400
    assert text in problem


def test_the_api_is_described(radar: str) -> None:
    """The OpenAPI document names every address that answers."""
    described = json.loads(ask(radar, "openapi.json"))
    for address in described["paths"]:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(urllib.request.Request(radar + address[1:], method="DELETE"), timeout=60)
        assert refusal.value.code == 405  # it is there, for GET
        refusal.value.close()


def test_headers_keep_strangers_out(radar: str) -> None:
    """No inline scripts, no frames, no guessing of types."""
    with urllib.request.urlopen(radar, timeout=60) as answer:
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_directory_without_a_journal(url: str, tmp_path: Path) -> None:
    """Radar does not start with a journal that is none, and says so in one line."""
    command = [str(JET), "radar", "--url", url, "--journal", str(tmp_path), "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "is not a journal" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_differences_between_two_instants(radar: str, speed: jetbus.State, owner: jetbus.Peer) -> None:
    """Elements added, removed and changed between two instants are listed with both values."""
    then = json.loads(ask(radar, "journal"))["now"]
    speed.change(99)
    owner.add_state("pump/new", [1])
    owner.get_all("pump/**")
    answer = json.loads(ask(radar, "differences", a=then, rule="pump/**"))
    assert answer == {
        "differences": [{"path": "pump/new", "after": [1]}, {"path": "pump/speed", "before": 3, "after": 99}],
        "total": 2,
    }
    assert json.loads(ask(radar, "differences", a=then, b=then)) == {"differences": [], "total": 0}


def test_the_changes_of_a_range(radar: str, speed: jetbus.State, owner: jetbus.Peer) -> None:
    """Of each path only the last event counts, so that a tree can be brought to a later instant."""
    then = json.loads(ask(radar, "journal"))["now"]
    short = owner.add_state("pump/short", 1)
    speed.change(98)
    speed.change(99)
    short.remove()
    owner.get_all("pump/**")
    answer = json.loads(ask(radar, "changes", since=then))
    assert [(element["path"], element["value"]) for element in answer["elements"]] == [("pump/speed", 99)]
    assert answer["removed"] == ["pump/short"]
    assert not answer["reset"]
    assert json.loads(ask(radar, "changes", since=0))["reset"], "the daemon has started in this time"


@pytest.mark.usefixtures("speed")
def test_events_of_several_paths(radar: str) -> None:
    """A question may name paths instead of a rule, and ask for the newest events first."""
    newest = json.loads(ask(radar, "events", path="pump/speed", newest=1, limit=2))
    assert [event["value"] for event in newest["events"]] == [3, 7]
    assert not newest["complete"]
    lines = ask(radar, "export?path=pump/speed&path=pump/mode&format=jsonl&x=").splitlines()
    assert {json.loads(line)["path"] for line in lines} == {"pump/speed", "pump/mode"}
    starts = json.loads(ask(radar, "events", events="start"))["events"]
    assert len(starts) == 1
    empty = pq.read_table(io.BytesIO(ask(radar, "export", rule="nowhere", format="parquet")))
    assert empty.num_rows == 0
    assert "value" in empty.schema.names


def test_a_member_of_an_object_is_a_series(radar: str, owner: jetbus.Peer) -> None:
    """The numbers in objects have a history, too."""
    lag = owner.add_state("lag", {"seconds": 1.5, "more": {"depth": 1}})
    lag.change({"seconds": 2.5, "more": {"depth": 7}})
    owner.get("lag")
    for member, numbers in {"seconds": [1.5, 2.5], "more.depth": [1, 7], "none": [None]}.items():
        table = pa.ipc.open_stream(ask(radar, "series", path="lag", member=member)).read_all()
        assert (table["last"].to_pylist() or [None]) == numbers, member


def test_the_latest_event(radar: str, owner: jetbus.Peer, url: str) -> None:
    """The latest event of a kind is found by its path; null if there is none."""
    owner.add_state("a b*", 1, on_set=lambda value: value)
    with jetbus.Peer(url, name="desk") as other:
        for value in (2, 3):
            other.set("a b*", value)
        other.call("$jet/journal/offsets")  # writes what is pending
    found = json.loads(ask(radar, "last", path="a b*", event="set"))["event"]
    assert (found["value"], found["peer"].split("#")[0]) == (3, "desk")
    assert json.loads(ask(radar, "last", path="nowhere")) == {"event": None}
    assert refused(radar, "last") == (400, "the parameter path is missing")


def test_a_removal_is_a_gap(radar: str, speed: jetbus.State, owner: jetbus.Peer) -> None:
    """The event of a removal has the last value, but from then on there is none."""
    speed.remove()
    owner.add_state("pump/speed", 8)
    owner.get("pump/speed")
    table = pa.ipc.open_stream(ask(radar, "series", path="pump/speed")).read_all()
    assert table["last"].to_pylist() == [0, 5, 7, 3, None, 8]


def test_an_unknown_kind_of_event(radar: str, tmp_path: Path) -> None:
    """A question for a kind of event that does not exist is the mistake of who asks, over the bus and in a folder."""
    code, text = refused(radar, "events", events="chnge")
    assert (code, "chnge; choose from add, change" in text) == (400, True)
    with serve_radar("jet://127.0.0.1:9", "--journal", str(tmp_path / "journal")) as local:
        code, text = refused(local, "last", path="a", event="chnge")
        assert (code, "chnge; choose from add, change" in text) == (400, True)


def test_missing_logins(tmp_path: Path) -> None:
    """The past of a bus with users answers 401 without a login, and 403 to a login that lacks the right."""
    users = {name: {"password": "secret", "auth": {"fetchGroups": [name]}} for name in ("staff", "guests")}
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"users": users}))
    options = ("--users", str(file), "--journal", str(tmp_path / "log"), "--journal-groups", "staff")

    def ask_as(user: str) -> int:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(f"{radar}login", json.dumps({"user": user, "password": "secret"}).encode(), timeout=60).close()
        with browser.open(f"{radar}api/journal", timeout=60) as answer:
            return int(answer.status)

    with Daemon.start(*options) as daemon, serve_radar(f"jet://{daemon.listens['tcp']}") as radar:
        assert refused(radar, "journal")[0] == 401
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask_as("guests")
        assert ask_as("staff") == 200


def test_https(url: str, tmp_path: Path) -> None:
    """With a certificate Radar speaks HTTPS only, and uses a new one after SIGHUP; a wrong one is refused by name."""
    ca, other = trustme.CA(), trustme.CA()
    file, key = tmp_path / "radar.pem", tmp_path / "radar.key"
    write_certificate(ca, file, key)
    tls = ("--tls-cert", str(file), "--tls-key", str(key))
    with run_radar(url, *tls) as (address, program):
        assert address.startswith("https://127.0.0.1:")
        assert ask_with(ca, address) == 200
        write_certificate(other, file, key)
        assert ask_with(ca, address) == 200, "nobody has said that there is a new one"
        os.kill(program.process.pid, signal.SIGHUP)
        while True:
            with suppress(urllib.error.URLError):
                assert ask_with(other, address) == 200
                break
    file.write_text("no certificate")
    done = subprocess.run([str(JET), "radar", *tls], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"the certificate {file} or its key cannot be used" in done.stderr


def write_certificate(ca: trustme.CA, file: Path, key: Path) -> None:
    """Write a new certificate for this machine."""
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(file)


def ask_with(ca: trustme.CA, address: str) -> int:
    """Return the status of an answer from a server whose certificate is of an authority."""
    context = ssl.create_default_context()
    ca.configure_trust(context)
    with urllib.request.urlopen(f"{address}api/openapi.json", timeout=60, context=context) as answer:
        return int(answer.status)
