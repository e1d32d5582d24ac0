"""Releases: the wheel and the sources, installed as a user does, in otherwise empty environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import jetbus
from jetbus.peer import handles
from jetbus.testing import running_daemon

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("jetbus", "pyspark_jet")
NOWHERE = ("--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off")

pytestmark = pytest.mark.timeout(1200)  # installing fetches what it installs


def run(*command: str | Path, fails: bool = False, variables: Mapping[str, str] | None = None) -> str:
    """Return the output of a command, both streams; check that it fails or succeeds as expected."""
    ran = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **(variables or {})},
    )
    assert (ran.returncode != 0) == fails, ran.stdout
    return ran.stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what is released; the wheel is built from the packed sources."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(released: Path) -> Path:
    (found,) = released.glob("*.whl")
    return found


def installed(folder: Path, wheel: Path, extra: str) -> Path:
    """The programs of a fresh environment with just the wheel and some extras."""
    run(sys.executable, "-m", "venv", folder)
    programs = folder / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]" if extra else wheel)
    return programs


@contextmanager
def daemon(programs: Path, *flags: str) -> Iterator[str]:
    """The URL of a daemon of that environment."""
    started = subprocess.Popen(
        [programs / "jetd", "--tcp", "127.0.0.1:0", *NOWHERE, *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        ready = dict(word.split("=", 1) for word in started.stdout.readline().split()[1:])
        yield f"jet://{ready['tcp']}"
        started.terminate()
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()


def add_for(programs: Path, url: str, path: str, value: str) -> subprocess.Popen[bytes]:
    """A program that owns a state, once the state is there."""
    owner = subprocess.Popen([programs / "jet", "--url", url, "add", path, value], stdout=subprocess.DEVNULL)
    run(programs / "jet", "--url", url, "watch", path, "--count", "1", "--for", "60s")
    return owner


def names_in(wheel: Path) -> set[str]:
    """The files that a wheel installs."""
    with zipfile.ZipFile(wheel) as packed:
        return {name for name in packed.namelist() if ".dist-info/" not in name}


COMPILED = {"jetbus/peer/_iterator.abi3.so", "jetbus/wire/_lane.abi3.so"} if handles.COMPILED else set()
"""What is compiled where the tests run, and thus there is a compiler."""


def test_the_wheel_is_whole(wheel: Path) -> None:
    """The wheel has every module, what belongs beside them, what is compiled, and nothing else."""
    files = [path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file()]
    written = {path for path in files if path.suffix not in (".c", ".h", ".so", ".pyc") and path.parts[0] in PACKAGES}
    assert names_in(wheel) == {str(path) for path in written} | COMPILED
    assert "jetbus/py.typed" in names_in(wheel)


def built(source: Path, folder: Path, **variables: str) -> Path:
    """The wheel of sources that lie somewhere else."""
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source, variables=variables)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """As the container has them: without their history."""
    folder = tmp_path / "sources"
    left = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=left)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "build_backend", folder / "build_backend")
    return folder


def test_sources_without_their_history(wheel: Path, sources: Path, tmp_path: Path) -> None:
    """A wheel built from the bare sources is the same."""
    assert names_in(built(sources, tmp_path / "dist")) == names_in(wheel)


def test_without_a_compiler(wheel: Path, sources: Path, tmp_path: Path) -> None:
    """Without a compiler the wheel is built all the same, and fetches are iterated over in Python."""
    bare = built(sources, tmp_path / "dist", CC="false")
    assert names_in(bare) == names_in(wheel) - COMPILED
    program = "from jetbus.peer import handles; print(handles.COMPILED, handles.__file__)"
    print_version = run(sys.executable, "-c", program, variables={"PYTHONPATH": str(bare)})
    assert print_version == f"False {bare / 'jetbus' / 'peer' / 'handles.py'}\n"


def test_the_sources_are_whole(released: Path) -> None:
    """The packed sources can be read, tested and built again."""
    (packed,) = released.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "docs/daemon.md"} <= names
    assert {"setup.py", "web/src/main.tsx", "src/jetbus/radar/static/index.html"} <= names
    assert {"tests/conftest.py", "examples/watch.py", "src/jetbus/__init__.py"} <= names
    assert {"src/jetbus/peer/_iterator.c", "src/jetbus/wire/_lane.c", "src/jetbus/wire/_walk.h"} <= names
    assert [name for name in names if "node_modules" in name or ".venv" in name or name.endswith(".so")] == []


def test_the_tag_is_the_version(tmp_path: Path) -> None:
    """Version 1.2.3 is the commit with the tag v1.2.3; without a tag it is one to come."""

    def git(*words: str) -> None:
        run("git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@localhost", *words)

    def print_version() -> str:
        command = [sys.executable, "-m", "setuptools_scm"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    assert print_version() == "0.1.0.dev0"
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    assert ".dev" in print_version()
    git("tag", "v1.2.3")
    assert print_version() == "1.2.3"


def list_packages(programs: Path) -> set[str]:
    """Return the names of the packages that an environment has."""
    program = "import importlib.metadata as m; print(*(each.name for each in m.distributions()))"
    return set(run(programs / "python", "-c", program).split())


def test_a_peer_needs_two_packages(wheel: Path, tmp_path: Path) -> None:
    """Without an extra a peer works beside msgspec and websockets alone; commands say which extra they need."""
    programs = installed(tmp_path / "env", wheel, "")
    assert list_packages(programs) - {"pip", "setuptools"} == {"jetbus", "msgspec", "websockets"}
    program = """
import jetbus, sys
with jetbus.Peer(sys.argv[1]) as owner, jetbus.Peer(sys.argv[2]) as other:
    owner.add_state("pump/speed", 7, on_set=lambda rpm: min(rpm, 30))
    print(other.set("pump/speed", 99).value, other.get("pump/speed"))
"""
    with running_daemon() as bus:
        assert run(programs / "python", "-c", program, bus.url, bus.ws_url) == "30 30\n"
    assert run(programs / "jet", "get", "a", fails=True) == (
        "jet: click is missing; install it with: pip install 'jetbus[cli]'\n"
    )
    assert run(programs / "jetget", fails=True) == run(programs / "jet", fails=True)
    assert run(programs / "jetd", fails=True) == (
        "jetd: argon2 is missing; install it with: pip install 'jetbus[daemon]'\n"
    )
    assert "the daemon needs argon2-cffi; install it with: pip install 'jetbus[daemon]'" in run(
        programs / "python", "-c", "import jetbus.testing", fails=True
    )


def test_the_commands_without_a_daemon(wheel: Path, tmp_path: Path) -> None:
    """With the extra for the command line, jet works; what runs a daemon says which extra it needs."""
    programs = installed(tmp_path / "env", wheel, "cli")
    with running_daemon() as bus, jetbus.Peer(bus.url) as owner:
        owner.add_state("pump/speed", 7)
        assert run(programs / "jet", "--url", bus.url, "get", "pump/speed", "--output", "value") == "7\n"
    assert run(programs / "jet", "daemon", fails=True) == (
        "jet: argon2 is missing; install it with: pip install 'jetbus[daemon]'\n"
    )


def test_pipx_installs_the_commands(wheel: Path, tmp_path: Path) -> None:
    """pipx puts the commands in place; they say which extra they miss."""
    programs = tmp_path / "bin"
    home = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(programs), "PIPX_MAN_DIR": str(tmp_path / "man")}
    run(sys.executable, "-m", "pipx", "install", f"{wheel}[daemon]", variables=home)
    commands = {path.name for path in programs.iterdir()}
    assert {"jet", "jetd", "jetcat", "jetget", "jetset", "jetexec", "jetinfo", "jetstate", "jetmethod"} == commands
    with daemon(programs) as url:
        owner = add_for(programs, url, "pump/speed", "7")
        assert run(programs / "jet", "--url", url, "get", "pump/speed", "--output", "value") == "7\n"
        owner.terminate()
        owner.wait()
    missed = run(programs / "jetd", "--journal", tmp_path / "journal", "--tcp", "127.0.0.1:0", *NOWHERE, fails=True)
    assert "pip install 'jetbus[history]'" in missed
    assert len(missed.splitlines()) == 1
    assert "pip install 'jetbus[spark]'" in run(programs / "jet", "sql", "select 1", "--tables", tmp_path, fails=True)


def test_history_alone_remembers(wheel: Path, tmp_path: Path) -> None:
    """With the extra for history a daemon writes a journal and looks back."""
    programs = installed(tmp_path / "env", wheel, "daemon,history")
    with daemon(programs, "--journal", str(tmp_path / "journal")) as url:
        owner = add_for(programs, url, "pump/speed", "7")
        owner.terminate()
        owner.wait()
    assert run(programs / "jet", "history", "pump/speed", "--journal", tmp_path / "journal", "--output", "jsonl")


NEIGHBOURS = ("amqtt", "pandas>=3")
"""Packages that pin, or need newer versions of, what others restrict."""


def test_all_beside_neighbours(wheel: Path) -> None:
    """Everything can be installed beside packages with strict requirements."""
    run(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", f"{wheel}[all]", *NEIGHBOURS)


def test_spark_finds_the_source(wheel: Path, tmp_path: Path) -> None:
    """With the extra for Spark, format jet is there by name."""
    programs = installed(tmp_path / "env", wheel, "daemon,spark")
    with daemon(programs, "--journal", str(tmp_path / "journal")) as url:
        owner = add_for(programs, url, "pump/speed", "7")
        owner.terminate()
        owner.wait()
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        f"log = spark.read.format('jet').load({str(tmp_path / 'journal')!r})\n"
        "print('found', log.where('event = \"add\"').count())"
    )
    # Spark starts the first python3 of PATH for its workers: the one of an environment that is activated.
    assert "found 1" in run("python3", "-c", program, variables={"PATH": f"{programs}:{os.environ['PATH']}"})
