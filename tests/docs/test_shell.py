"""Lines of plain shell are typed as a reader would, each by its program: at free ports, in folders that are ours."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.test_blocks import BLOCKS, SHELL, name_of
from support.demo import READY, Lines, left_behind
from support.docs import DEADLINE_S, FREE_PORTS, ROOT
from support.program import Program

PROGRAMS = Path(sys.executable).parent
PATH = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"


def starts_a_daemon(line: str, folder: Path) -> None:
    """The daemon gets ready with these words, but at a free port of the loopback, and ends by Ctrl-C."""
    environment = {**os.environ, **FREE_PORTS, "PATH": PATH}
    here = re.sub(r"'\*:\d+'", "127.0.0.1:0", line)
    with Program("/bin/sh", "-c", f"exec {here}", folder=folder, environment=environment) as daemon:
        assert str(daemon.line()).startswith("ready tcp=")
        code, complaints = daemon.interrupt()
        assert code == 0, complaints


def starts_the_demo(line: str, folder: Path) -> None:
    """The demo runs, without Java here, says what to try, and ends by Ctrl-C without a trace."""
    with Lines(folder, *shlex.split(line)[2:], PATH="/nowhere", JAVA_HOME="") as demo:
        demo.until(READY)
        assert demo.end(signal.SIGINT) == (0, "")
    assert left_behind(folder) == ([], [])


class Made(NamedTuple):
    """The end of the recipe of a target, as a pattern, and the test that does the same."""

    end: str
    test: str


MADE = {
    "check": Made("mypy\ncd web && npm run check --silent", "Makefile: what `make test` does first"),
    "demo": Made("jet demo", "demo/test_spark.py"),
    "docs": Made(
        "sphinx-build --fail-on-warning --keep-going --quiet --builder dirhtml docs build/site", "docs/test_site.py"
    ),
    "audit": Made("python requirements/audit.py", "packaging/test_locks.py, without the network"),
    "fuzz": Made("python tests/fuzz/run.py --seconds 60", "fuzz/test_targets.py, without atheris"),
    "lock": Made(
        r"uv pip compile .* --output-file requirements/wheels\.txt", "packaging/test_locks.py checks the files"
    ),
    "quick": Made(
        "python -m pytest .* -m 'not spark and not browser and not interop and not slow'",
        "Makefile: some of what `make test` does",
    ),
    "release": Made("python build_backend/release.py", "packaging/test_release.py"),
    "soak": Made("python bench/soak.py --minutes 5 --chart build/soak.svg", "test_soak.py, for seconds"),
    "test-minimum": Made("python -m pytest -m .*", "other dependencies, same tests"),
    "test": Made("python -m pytest .* --durations 20", "this one: it is what runs all tests"),
}


def is_made(line: str, folder: Path) -> None:
    """``make`` would do what another test does; what takes no time is done."""
    (_, target) = shlex.split(line)
    recipe = subprocess.run(
        ["make", "--no-print-directory", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert recipe.returncode == 0, recipe.stderr
    if target in MADE:
        assert re.search(f"/bin/{MADE[target].end}$", recipe.stdout.rstrip())
        return
    DONE[target](recipe.stdout, folder)


def helps(recipe: str, _folder: Path) -> None:
    said = subprocess.run(["/bin/sh", "-c", recipe], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [target for target in (*MADE, *DONE) if f"make {target} " not in said] == []


def lays_out(recipe: str, folder: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "odd.py").write_text("some = [ 1,2 ]\n")
    lines = "\n".join(line for line in recipe.splitlines() if "/bin/ruff " in line)  # all is installed already
    recipe = re.sub(r"^\S+/bin", str(PROGRAMS), lines, flags=re.MULTILINE)
    done = subprocess.run(["/bin/sh", "-ec", recipe], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert (folder / "odd.py").read_text() == "some = [1, 2]\n"


DONE: dict[str, Callable[[str, Path], None]] = {"help": helps, "format": lays_out}
INSTALLING = ("python3 -m venv ", ". ", "pip install .", "pip install '.", "pip install ")
"""What lines that install begin with, in the order in which they make sense."""
TYPED: dict[str, Callable[[str, Path], None]] = {
    "jetd": starts_a_daemon,
    "jet demo": starts_the_demo,
    "make": is_made,
}
"""What becomes of a line that begins so."""
LINES = [
    pytest.param(line, id=f"{block.where} {line}")
    for block in BLOCKS
    if block.is_shell and SHELL.get(name_of(block)) == "docs/test_shell.py"
    for line in block.commands
]


@pytest.mark.parametrize("line", [line for line in LINES if not str(line.values[0]).startswith(INSTALLING)])
def test_lines_do_something(line: str, tmp_path: Path) -> None:
    """A line of shell does what its program is for; teach this module about programs that it does not know."""
    (program,) = [program for program in TYPED if line == program or line.startswith(f"{program} ")]
    TYPED[program](line, tmp_path)


@pytest.mark.parametrize("line", ["jetd --no-such-flag", "make nothing", "jet demo --no-such-flag", "rm -rf nothing"])
def test_wrong_lines_are_found(line: str, tmp_path: Path) -> None:
    """A flag, a target or a program that does not exist is found."""
    with pytest.raises((AssertionError, ValueError)):
        test_lines_do_something(line, tmp_path)


def test_the_other_tests_are_there() -> None:
    """The tests that are said to do what ``make`` does exist."""
    tests = [made.test for made in MADE.values() if made.test.endswith(".py")]
    assert tests
    assert [test for test in tests if not (ROOT / "tests" / test).is_file()] == []


# -- installing


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A clean copy of what the package is made from."""
    shutil.copytree(ROOT / "src", tmp_path / "sources" / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "sources")
    shutil.copytree(ROOT / "build_backend", tmp_path / "sources" / "build_backend")
    return tmp_path / "sources"


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Everything that is installed here but jetbus, so that nothing must be fetched."""
    folder = tmp_path / "others"
    folder.mkdir()
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if not entry.name.startswith(("jetbus", "_jetbus", "pyspark_jet", "__")) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def test_it_is_installed(sources: Path, others: Path) -> None:
    """In the folder of the sources the lines that install give an environment with the commands and the extras.

    What they depend on is taken from here; packaging/test_packaging.py fetches it.
    """
    lines = [str(line.values[0]) for line in LINES if str(line.values[0]).startswith(INSTALLING)]
    lines.sort(key=lambda line: next(place for place, begin in enumerate(INSTALLING) if line.startswith(begin)))
    assert len(lines) == len(INSTALLING)
    done = subprocess.run(
        ["/bin/sh", "-exc", "\n".join([*lines, "jet --version", "python -c 'import pyspark_jet, jetbus.spark'"])],
        cwd=sources,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "PIP_"))},
            "PATH": PATH,
            "PYTHONPATH": str(others),
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=10 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert {"jet", "jetd"} <= {path.name for path in (sources / ".venv" / "bin").iterdir()}
