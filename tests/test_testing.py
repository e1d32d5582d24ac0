"""The daemon for users' own tests: as a context manager, as a pytest fixture, and at the same addresses again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import jetbus
from jetbus.daemon.config import Address
from jetbus.testing import RunningDaemon, running_daemon


def test_context_manager() -> None:
    """In a with block there is a real daemon on free ports; after it there is none, nor any thread of it."""
    before = set(threading.enumerate())
    with running_daemon() as daemon:
        for url in (daemon.url, daemon.ws_url):
            with jetbus.Peer(url) as peer:
                peer.add_state("a", 1)
                assert peer.get_all() == {"a": 1}
    assert not {thread for thread in threading.enumerate() if thread.name == "jetd"} - before
    with pytest.raises(jetbus.NotConnected):
        jetbus.Peer(daemon.url).connect()


def test_daemons_do_not_know_each_other() -> None:
    """Several daemons run side by side, each with its own tree."""
    with (
        running_daemon() as one,
        running_daemon() as other,
        jetbus.Peer(one.url) as peer,
        jetbus.Peer(other.url) as far,
    ):
        peer.add_state("a", 1)
        assert far.get_all() == {}


def test_settings(tmp_path: Path) -> None:
    """The settings are those of the daemon."""
    with running_daemon(tree="flat", unix=str(tmp_path / "socket")) as daemon, jetbus.Peer(daemon.unix_url) as peer:
        peer.add_state("a", 1)
        peer.add_state("a/b", 2)
        assert peer.get_all() == {"a": 1, "a/b": 2}


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_in_settings(tmp_path: Path, kind: type[str] | type[Path]) -> None:
    """A directory may be text or a Path."""
    with running_daemon(journal=kind(tmp_path / "journal")) as daemon, jetbus.Peer(daemon.url) as peer:
        peer.add_state("a", 1)
    assert (tmp_path / "journal").is_dir()


def test_unknown_setting() -> None:
    """A setting that there is not is a mistake."""
    with pytest.raises(TypeError, match="no_such_setting"):
        RunningDaemon(no_such_setting=1)


def test_restart() -> None:
    """A restarted daemon has the same addresses and an empty tree."""
    with running_daemon() as daemon:
        urls = daemon.url, daemon.ws_url
        with jetbus.Peer(daemon.url, reconnect=False) as peer:
            peer.add_state("a", 1)
            daemon.restart()
        assert (daemon.url, daemon.ws_url) == urls
        with jetbus.Peer(daemon.ws_url) as peer:
            assert peer.get_all() == {}


def test_stopping_twice() -> None:
    """Stopping what is stopped is nothing."""
    daemon = RunningDaemon()
    daemon.stop()
    daemon.start()
    daemon.stop()
    daemon.stop()


def test_daemon_that_cannot_start() -> None:
    """The reason why a daemon could not start is raised where it was started."""
    with running_daemon() as daemon:
        host, port = daemon.listening["tcp"].rsplit(":", 1)
        taken = Address(host, int(port))
        with pytest.raises(Exception, match=port):
            RunningDaemon(tcp=taken).start()


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    """A daemon that cannot be made fails at once, with the cause."""
    taken = tmp_path / "file"
    taken.write_text("no folder")
    with pytest.raises(Exception, match="file") as problem, running_daemon(journal=taken):
        pass
    assert not isinstance(problem.value, TimeoutError)


CONFTEST = 'pytest_plugins = ["jetbus.testing"]\n'
TESTS = """
import jetbus


def test_first(jet_daemon):
    with jetbus.Peer(jet_daemon.url) as peer:
        peer.add_state("a", 1)
        assert peer.get_all() == {"a": 1}


def test_second(jet_daemon):
    with jetbus.Peer(jet_daemon.ws_url) as peer:
        assert peer.get_all() == {}
"""


def test_fixture(tmp_path: Path) -> None:
    """As a pytest plugin it gives each test a daemon of its own."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_mine.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
