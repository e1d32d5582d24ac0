"""Selection of the bus by options, environment and contexts, and its credentials."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

import jetbus
from jetbus.daemon.config import Address
from jetbus.peer.address import read_url
from jetbus.testing import running_daemon
from support.daemon import Daemon
from support.foreign import free_port
from support.jet import Jet
from support.peers import DEADLINE_S
from support.plant import url_of

NOWHERE = "unix://@nobody-is-there"


def test_contexts(jet: Jet) -> None:
    """A context is added, used, listed and removed; a context in use is the bus of every command."""
    url = jet.environment.pop("JET_URL")
    assert jet("context", "add", "plant", url).code == 0
    assert jet("get", "plant/pump/mode", "-o", "value", "--context", "plant").out == "manual\n"
    assert jet("get", "plant/pump/mode", "-o", "value", JET_CONTEXT="plant").out == "manual\n"
    assert jet("context", "use", "plant").code == 0
    assert jet("get", "plant/pump/mode", "-o", "value").out == "manual\n"
    assert jet("context", "ls", "-o", "csv").out == f"name,current,url,user,password,ca\nplant,true,{url},,,\n"
    assert jet("context", "rm", "plant").code == 0
    assert jet("context", "ls").out == ""


def test_the_strongest_wins(jet: Jet) -> None:
    """--url is stronger than JET_URL, that than JET_CONTEXT, that than the context in use."""
    url = jet.environment.pop("JET_URL")
    file = jet.folder / "config" / "jet" / "contexts.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'current = "wrong"\n[contexts.wrong]\nurl = "{NOWHERE}"\n[contexts.right]\nurl = "{url}"\n')
    right = ["get", "plant/pump/mode", "-o", "value"]
    assert jet(*right).code == 3
    assert jet(*right, JET_CONTEXT="right").code == 0
    assert jet(*right, JET_CONTEXT="wrong", JET_URL=url).code == 0
    assert jet(*right, "--context", "right", JET_URL=NOWHERE).code == 0
    assert jet(*right, "--url", url, JET_URL=NOWHERE).code == 0


def test_contexts_are_private(jet: Jet) -> None:
    """The file of contexts has passwords: only its owner may read it, no list shows them."""
    (jet.folder / "pass.txt").write_text('a "secret" \\ ü\n')
    done = jet("context", "add", "lab", "jets://lab:1", "--user", "ann", "--password-file", "pass.txt")
    assert json.loads(done.out)["password"] == "***"
    file = jet.folder / "config" / "jet" / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "secret" not in jet("context", "ls", "-o", "json").out
    assert "secret" in file.read_text()


def test_a_login(guarded: tuple[Jet, jetbus.Peer]) -> None:
    """A user sees what its groups may see: by option, by context and by URL."""
    jet, owner = guarded
    owner.add_state("plant/secret", 7, access={"fetchGroups": ["staff"]})
    get = ["get", "plant/secret", "-o", "value"]
    assert jet(*get).code == 5
    assert jet(*get, "--user", "bob", "--password-file", "pass.txt") == (0, "7\n", "")
    assert jet(*get, "--user", "bob", "--password-file", "-", stdin="secret\n") == (0, "7\n", "")
    with_login = jet.environment["JET_URL"].replace("jet://", "jet://bob:secret@")
    assert jet(*get, "--url", with_login) == (0, "7\n", "")
    words = ["--user", "bob", "--password-file", "pass.txt"]
    assert jet("context", "add", "lab", jet.environment["JET_URL"], *words).code == 0
    assert jet(*get, "--context", "lab") == (0, "7\n", "")
    assert jet("watch", "plant/secret", "-n", "1", "-o", "value", "--context", "lab") == (0, "7\n", "")


def test_refusals(guarded: tuple[Jet, jetbus.Peer]) -> None:
    """A wrong password and a lacking group are exit code 4, each with its reason."""
    jet, owner = guarded
    owner.add_state("plant/speed", 1, on_set=lambda _value: None, access={"setGroups": ["staff"]})
    (jet.folder / "wrong.txt").write_text("wrong\n")
    wrong = jet("get", "plant/speed", "--user", "bob", "--password-file", "wrong.txt")
    assert wrong == (
        4,
        "",
        "jet: login refused: wrong user or password; check --user and the password, or correct the context\n",
    )
    assert jet("watch", "plant/speed", "--user", "bob", "--password-file", "wrong.txt")[0] == 4
    refused = jet("set", "plant/speed", "2", "--user", "bob", "--password-file", "pass.txt")
    assert refused == (
        4,
        "",
        "jet: this user may not access plant/speed; authenticate as a member of its groups; `--user NAME` logs in\n",
    )


@pytest.mark.parametrize("scheme", ["jets", "wss"])
def test_tls(tmp_path: Path, scheme: str) -> None:
    """With --ca a daemon whose certificate is of one's own authority is trusted, without it is not."""
    authority = trustme.CA()
    certificate, ca = tmp_path / "daemon.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    authority.cert_pem.write_to_path(str(ca))
    with Daemon.start("--tls-cert", str(certificate)) as daemon:
        where = daemon.listens["tcp" if scheme == "jets" else "ws"]
        address = read_url(f"{scheme}://{where}")
        jet = Jet(str(address), tmp_path)
        assert jet("get", "$jet/pid", "-o", "value", "--ca", "ca.pem") == (0, f"{daemon.process.pid}\n", "")
        assert jet("watch", "$jet/pid", "-n", "1", "-o", "value", "--ca", "ca.pem").code == 0
        for words in (["get", "$jet/pid"], ["watch", "$jet/pid"]):
            assert jet(*words) == (
                3,
                "",
                f"jet: the certificate of the daemon at {address} is not trusted: unable to get local issuer"
                " certificate; trust the authority that signed it, with --ca FILE or tls= in Python\n",
            )
        plain = str(address._replace(scheme=scheme[:-1]))
        for words in (["get", "$jet/pid"], ["watch", "$jet/pid"]):
            code, _, err = jet(*words, "--url", plain)
            assert code == 3
            assert f" with TLS: use {address}" in err
        named = address._replace(host="localhost")
        err = jet("get", "$jet/pid", "--url", str(named), "--ca", "ca.pem").err
        assert "certificate is not valid for 'localhost'; connect by a name that is in the certificate" in err


@pytest.mark.parametrize(("scheme", "plain"), [("jets", "jet"), ("wss", "ws"), ("jetbs", "jetb")])
def test_tls_where_there_is_none(plant_daemon: Daemon, tmp_path: Path, scheme: str, plain: str) -> None:
    """At a daemon without TLS it is said that it has none, and which address to use."""
    where = plant_daemon.listens[{"jets": "tcp", "wss": "ws", "jetbs": "binary"}[scheme]]
    slash = "/" if scheme == "wss" else ""
    jet = Jet(f"{scheme}://{where}", tmp_path)
    assert jet("get", "$jet/pid") == (
        3,
        "",
        f"jet: what listens at {scheme}://{where}{slash} does not speak TLS (wrong version number);"
        f" use {plain}://{where}{slash} if it is a daemon\n",
    )


def test_doctor(jet: Jet) -> None:
    """doctor finds nothing wrong with a bus that is fine, and tells what is with one that is not."""
    code, out, _ = jet("doctor")
    found = {line["check"]: line["state"] for line in map(json.loads, out.splitlines())}
    assert code == 0
    assert {"program", "contexts", "bus", "connection", "daemon", "limits", "slow peers"} <= found.keys()
    assert "wrong" not in found.values()
    code, out, _ = jet("doctor", "--url", NOWHERE)
    wrong = [line["text"] for line in map(json.loads, out.splitlines()) if line["state"] == "wrong"]
    assert code == 3
    assert "start one with `jetd`" in wrong[0]


def test_doctor_calls_fairness_no_problem(tmp_path: Path) -> None:
    """Peers that had to wait for their turn are no problem; a limit that refused something is."""
    with Daemon.start("--turn-us-max", "1") as daemon, daemon.connect() as wire:
        for number in range(50):
            wire.notify("add", {"path": f"many/{number}", "value": number})
        wire.barrier()
        wire.result("get", {})
        (hits,) = wire.result("get", {"path": {"equals": "$jet/limit_hits"}})
        assert hits["value"]["turn_us_max"] > 0
        _, out, _ = Jet("jet://{}:{}".format(*daemon.address("tcp")), tmp_path)("doctor")
        found = {line["check"]: line for line in map(json.loads, out.splitlines())}
        assert (found["limits"]["state"], found["limits"]["text"]) == ("ok", "none reached")


TROUBLES = {
    "no users file": (["--users", "none.json"], {}, "users file", "wrong", "create it"),
    "no users in it": (["--users", "odd.json"], {}, "users file", "wrong", 'odd.json has no object "users"'),
    "users for all eyes": (["--users", "open.json"], {}, "users file", "warning", "chmod 600"),
    "a journal nowhere": (["--journal", "odd.json/log"], {}, "journal", "wrong", "cannot write to"),
    "a journal": (["--journal", "new/log"], {}, "journal", "ok", "GB free"),
    "no Java": ([], {"JAVA_HOME": "/nowhere"}, "Spark", "warning", "install Java 17"),
}


@pytest.mark.parametrize("case", TROUBLES)
def test_doctor_looks_at_the_machine(jet: Jet, case: str) -> None:
    """doctor tells what is wrong with the files of a daemon and with what is installed; warnings are no failure."""
    if case == "no Java":
        pytest.importorskip("pyspark")
    (jet.folder / "odd.json").write_text("{}")
    (jet.folder / "open.json").write_text('{"users": {}}')
    (jet.folder / "open.json").chmod(0o644)
    words, environment, check, state, text = TROUBLES[case]
    done = jet("doctor", *words, **environment)
    found = {line["check"]: line for line in map(json.loads, done.out.splitlines())}
    assert found[check]["state"] == state
    assert text in found[check]["text"]
    assert done.code == (2 if state == "wrong" else 0)


def test_doctor_knows_the_limit_of_files(jet: Jet) -> None:
    """doctor warns where a daemon could serve only few connections."""
    done = jet.shell("ulimit -n 200; jet doctor")
    found = {line["check"]: line for line in map(json.loads, done.out.splitlines())}
    assert (done.code, found["open files"]["state"]) == (0, "warning")


def test_doctor_finds_a_daemon_nearby(jet: Jet, plant_daemon: Daemon) -> None:
    """For a URL with the wrong protocol, doctor names the one that the daemon speaks at that port."""
    code, out, _ = jet("doctor", "--url", f"ws://{plant_daemon.listens['tcp']}")
    nearby = [line["text"] for line in map(json.loads, out.splitlines()) if line["check"] == "nearby"]
    assert code == 3
    assert f"found a daemon (jetbus) at {jet.environment['JET_URL']}; select it with --url or JET_URL" in nearby


def test_doctor_looks_at_web_pages(jet: Jet) -> None:
    """doctor tells which web pages may use the daemon, and warns if all may."""
    found = {line["check"]: line for line in map(json.loads, jet("doctor").out.splitlines())}
    assert found["web pages"]["state"] == "ok"
    with Daemon.start("--ws-origins", "*") as daemon:
        out = jet("doctor", "--url", url_of(daemon)).out
    found = {line["check"]: line for line in map(json.loads, out.splitlines())}
    assert found["web pages"]["state"] == "warning"


def test_doctor_looks_at_contexts(jet: Jet) -> None:
    """doctor warns of contexts that others may read."""
    jet("context", "add", "plant", jet.environment["JET_URL"])
    (jet.folder / "config" / "jet" / "contexts.toml").chmod(0o644)
    found = {line["check"]: line for line in map(json.loads, jet("doctor").out.splitlines())}
    assert found["contexts"]["state"] == "warning"


def test_url_without_scheme(jet: Jet, plant_daemon: Daemon) -> None:
    """A bare host and port is TCP."""
    assert jet("get", "plant/pump/mode", "-o", "value", "--url", url_of(plant_daemon)[6:]).out == "manual\n"


WAITING: dict[str, tuple[list[str], str]] = {
    "asks once": (["get", "$jet/version"], jetbus.__version__),
    "stays": (["watch", "$jet/version", "-n", "1"], jetbus.__version__),
    "records": (["record", "log", "--for", "100ms"], "2"),  # its start and its stop
}


@pytest.mark.parametrize(("words", "printed"), WAITING.values(), ids=WAITING.keys())
def test_a_command_waits_for_its_daemon(tmp_path: Path, words: list[str], printed: str) -> None:
    """With --wait a command says that it waits, and is carried out when there is a daemon."""
    port = free_port()
    command = [sys.executable, "-m", "jetbus.cli", "--url", f"jet://127.0.0.1:{port}", *words, "-o", "value", "--wait"]
    out_pipe = err_pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=out_pipe, stderr=err_pipe, text=True) as process:
        assert process.stderr is not None
        assert "waiting until there is one" in process.stderr.readline()
        with running_daemon(tcp=Address("127.0.0.1", port)):
            out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, err, process.returncode) == (f"{printed}\n", "", 0)


@pytest.mark.parametrize("is_read", [True, False], ids=["reads", "publishes"])
def test_a_pipeline_waits_for_its_daemon(tmp_path: Path, is_read: bool) -> None:
    """With --wait a pipeline waits for the daemons that it reads, and for the one where it publishes, before Spark."""
    url = f"jet://127.0.0.1:{free_port()}"
    words = ["--journal", url] if is_read else ["--journal", "log", "--publish", "spark", "--url", url]
    command = [sys.executable, "-m", "jetbus.cli", "pipeline", "run", *words, "--tables", "tables", "--once", "--wait"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    assert url.removeprefix("jet://") in line
    assert "waiting until there is one" in line
    assert process.returncode == 130
