"""Fixtures: real daemons, shared by all tests that start them with the same options, and one real Spark."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.daemon import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
Daemons = Callable[..., Daemon]
SPARK_WITHIN_S = 900
"""What takes seconds with Spark takes minutes on a busy machine."""
KILLS = "test_crashes.py"
"""Looks at what has come of the kills."""
DEFAULT_ADDRESSES: tuple[tuple[socket.AddressFamily, Any], ...] = (
    (socket.AF_INET, ("127.0.0.1", 11122)),
    (socket.AF_INET, ("127.0.0.1", 11124)),
    (socket.AF_UNIX, "\0/var/run/jet-binary.socket"),
)
"""Addresses of a daemon without options. They are in use during all tests, so that no test depends on another."""
SHARED = "shared"
USES_SHARED = re.compile(r"\b(?:spark: SparkSession|killed: Killed\b|usefixtures\(\"spark\"\))")
"""Marks of tests that use the one Spark session, or the pipeline that is killed beside it."""
SLOW = {
    "demo": {"test_demo.py"},
    "hostile": {"test_hostile.py", "test_hostile_daemon.py", "test_memory.py"},
    "packaging": {"test_container.py", "test_packaging.py", "test_release.py"},
    "system": {"test_system.py"},
    "binary": {"test_access.py"},
    "bridge": {"test_loss.py", "test_running.py"},
    "bus": {"test_audience.py"},
    "cli": {
        *("test_completion.py", "test_examples.py", "test_journals.py", "test_record.py", "test_restore.py"),
        *("test_streams.py", "test_tables.py", "test_target.py", "test_terminal.py", "test_tools.py"),
        *("test_transcripts.py", "test_user.py"),
    },
    "daemon": {
        *("test_arrival.py", "test_closing.py", "test_credentials.py", "test_fuzz.py", "test_journal.py"),
        *("test_journal_crash.py", "test_limits.py", "test_main.py", "test_model.py", "test_past.py", "test_radar.py"),
    },
    "docs": {"test_shell.py", "test_site.py"},
    "journal": {"test_compaction.py", "test_recovery.py"},
    "radar": {"test_api.py"},
    "tests": {"test_contributing.py", "test_pure.py", "test_soak.py"},
}
"""Files that took longest, by folder: ``make quick`` leaves them out. A file that is not here is quick."""
SLOWEST = 10
"""Files that a run with ``--durations`` lists at its end."""
_file_seconds: dict[str, float] = defaultdict(float)
_worker_seconds: dict[str, float] = defaultdict(float)


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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Occupy the default addresses of a daemon, unless another program has them, once for all workers."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    for family, address in DEFAULT_ADDRESSES:
        held = socket.socket(family, socket.SOCK_STREAM)
        session.config.add_cleanup(held.close)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            held.bind(address)
            held.listen()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests: those that take longest are last, or first if there are workers, so that both end together.

    Kills of a pipeline go on beside the tests of Spark, so that their test is the last of these.
    """
    for item in items:
        if "spark" in item.path.parts:
            item.add_marker("spark")
        if item.path.name in SLOW.get(item.path.parent.name, ()):
            item.add_marker("slow")
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_WITHIN_S))
    items.sort(key=lambda item: (_takes_long(item), item.path.name == KILLS))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (_find_group(item.nodeid) != SHARED, not _takes_long(item)))


def _takes_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("spark", "slow"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Give each file to one worker, and all files that use the one Spark session to the same one.

    xdist has groups for this (``--dist loadgroup``), but they do nothing with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _find_group(nodeid)

    return ByFile(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the time of a test to that of its file, and of the worker that ran it."""
    _file_seconds[report.nodeid.partition("::")[0]] += report.duration
    if node := getattr(report, "node", None):
        _worker_seconds[node.gateway.id] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the slowest files and the time of each worker, if durations were asked for."""
    if config.option.durations is None:
        return
    terminalreporter.section(f"slowest {SLOWEST} files")
    for file, seconds in sorted(_file_seconds.items(), key=lambda row: -row[1])[:SLOWEST]:
        terminalreporter.write_line(f"{seconds:.0f}s {file}")
    for worker, seconds in sorted(_worker_seconds.items()):
        terminalreporter.write_line(f"worker {worker} was busy for {seconds:.0f}s")


def _find_group(nodeid: str) -> str:
    """Return the name of the group of tests that one worker runs."""
    file = nodeid.partition("::")[0]
    return SHARED if _uses_shared(file) else file


@cache
def _uses_shared(file: str) -> bool:
    return USES_SHARED.search((ROOT / file).read_text(encoding="utf-8")) is not None


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
