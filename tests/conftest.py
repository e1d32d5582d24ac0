"""Fixtures: real daemons, shared by all tests that start them with the same options, and one real Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.daemon import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadScopeScheduling

Daemons = Callable[..., Daemon]
SPARK_WITHIN_S = 900
"""What takes seconds with Spark takes minutes on a busy machine."""
KILLS = "test_crashes.py"
"""Looks at what has come of the kills."""
USUAL_PORTS = ("daemon/test_main.py", "demo/test_demo.py", "docs/test_shell.py", "test_examples.py")
"""Tests in which somebody listens on the usual ports, or finds them taken."""
SHARED = "shared"


class Killed(NamedTuple):
    """A process that kills a pipeline again and again, and where."""

    process: subprocess.Popen[str]
    folder: Path


def pytest_configure() -> None:
    """Processes started in the background of a shell ignore Ctrl-C, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Daemons that a test starts with its own flags listen nowhere else; two of them must not want the same port.
    os.environ |= {"JET_BINARY": "off", "JET_BINARY_UNIX": "off"}
    # Workers get the size of a terminal from xdist; programs would believe it more than their own terminal.
    for name in ("LINES", "COLUMNS"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests, so that what needs a real Spark, which takes longest, is last, or first where there are workers.

    Kills go on meanwhile, so that their test is the last of these.
    """
    for item in items:
        if "spark" in item.path.parts:
            item.add_marker("spark")
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_WITHIN_S))
    items.sort(key=lambda item: (item.get_closest_marker("spark") is not None, item.path.name == KILLS))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _find_group(item.nodeid) != SHARED)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Give each file to one worker, and to the same one all that share what there is once: Spark and the usual ports.

    xdist has groups for this (``--dist loadgroup``), but they do nothing with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _find_group(nodeid)

    return ByFile(config, log)


def _find_group(nodeid: str) -> str:
    """Return the name of the group of tests that one worker runs."""
    file = nodeid.partition("::")[0]
    return SHARED if "spark" in file or file.endswith(USUAL_PORTS) else file


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that relative paths are below for Spark."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_folder: Path, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """One Spark session for all tests: starting one takes as long as ten of them."""
    from support.spark.machines import patience, start_session

    if any(item.path.name == KILLS for item in request.session.items):
        request.getfixturevalue("killed")
    running = start_session(spark_folder)
    with patience():
        yield running
    running.stop()


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """A pipeline that is killed while other tests run: that takes minutes."""
    folder = tmp_path_factory.mktemp("killed")
    program = "import sys; sys.path.insert(0, sys.argv[1]); from support.spark.kills import main; main(sys.argv[2])"
    with (
        (folder / "complaints").open("wb") as complaints,
        subprocess.Popen(
            [sys.executable, "-c", program, str(Path(__file__).parent), str(folder)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        ) as process,
    ):
        yield Killed(process, folder)
        process.terminate()


@pytest.fixture(scope="session")
def shared_daemons() -> Iterator[Daemons]:
    """Start a daemon with these options, or hand out the one that is running with them."""
    running: dict[tuple[str, ...], Daemon] = {}

    def shared(*options: str) -> Daemon:
        if options not in running:
            running[options] = Daemon.start(*options)
        return running[options]

    yield shared
    for daemon in running.values():
        daemon.stop()


@pytest.fixture
def daemon(shared_daemons: Daemons) -> Iterator[Daemon]:
    """A daemon with default options and nothing on its bus; shared, so that a test must close what it opens."""
    shared = shared_daemons()
    shared.await_empty()
    yield shared
    shared.check()


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Daemons]:
    """Start daemons of this test's own, with any options; they are stopped and checked after it."""
    # The folder is removed after the test, and must outlive a daemon that still writes its journal there.
    assert tmp_path.is_dir()
    started: list[Daemon] = []

    def start(*options: str) -> Daemon:
        started.append(Daemon.start(*options))
        return started[-1]

    yield start
    for own in started:
        own.stop()
