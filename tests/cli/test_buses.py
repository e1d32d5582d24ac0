"""Which bus: options, environment and contexts; the credentials that go with them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import trustme

import jetbus
from cli.conftest import url_of
from cli.running import Jet
from support.daemon import Daemon

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
        "jet: the login is refused: wrong password; give another user with --user, or correct the context\n",
    )
    assert jet("watch", "plant/speed", "--user", "bob", "--password-file", "wrong.txt")[0] == 4
    refused = jet("set", "plant/speed", "2", "--user", "bob", "--password-file", "pass.txt")
    assert refused == (
        4,
        "",
        "jet: plant/speed is not open to this user; authenticate as one who has the group; `--user NAME` logs in\n",
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
        jet = Jet(f"{scheme}://{where}", tmp_path)
        assert jet("get", "$jet/pid", "-o", "value", "--ca", "ca.pem") == (0, f"{daemon.process.pid}\n", "")
        assert jet("watch", "$jet/pid", "-n", "1", "-o", "value", "--ca", "ca.pem").code == 0
        code, _, err = jet("get", "$jet/pid")
        assert code == 3
        assert "certificate verify failed" in err


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


TROUBLES = {
    "no users file": (["--users", "none.json"], {}, "users file", "wrong", "create it"),
    "no users in it": (["--users", "odd.json"], {}, "users file", "wrong", 'odd.json has no object "users"'),
    "users for all eyes": (["--users", "open.json"], {}, "users file", "warning", "chmod 600"),
    "a journal nowhere": (["--journal", "odd.json/log"], {}, "journal", "wrong", "nothing can be written"),
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
    """Where a URL has the wrong protocol, doctor tells the one that the daemon speaks at that port."""
    code, out, _ = jet("doctor", "--url", f"ws://{plant_daemon.listens['tcp']}")
    nearby = [line["text"] for line in map(json.loads, out.splitlines()) if line["check"] == "nearby"]
    assert code == 3
    assert f"there is a daemon (jetbus) at {jet.environment['JET_URL']}; name it with --url or JET_URL" in nearby


def test_doctor_looks_at_contexts(jet: Jet) -> None:
    """doctor warns of contexts that others may read."""
    jet("context", "add", "plant", jet.environment["JET_URL"])
    (jet.folder / "config" / "jet" / "contexts.toml").chmod(0o644)
    found = {line["check"]: line for line in map(json.loads, jet("doctor").out.splitlines())}
    assert found["contexts"]["state"] == "warning"


def test_url_without_scheme(jet: Jet, plant_daemon: Daemon) -> None:
    """A bare host and port is TCP."""
    assert jet("get", "plant/pump/mode", "-o", "value", "--url", url_of(plant_daemon)[6:]).out == "manual\n"
