"""`make release`: what stands in the way of a release is found, and what is built is whole."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from jetbus.peer import handles

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "build_backend" / "release.py"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = "# Changelog\n\n## [1.2.3] - 2026-03-01\n"
PROBLEMS = {
    "nothing": ("1.2.3", GOOD, "", []),
    "no tag": (None, GOOD, "", ["this commit has no tag"]),
    "changes": ("1.2.3", GOOD, " M README.md\n", ["not committed, first M README.md"]),
    "another heading": ("1.2.4", GOOD, "", ["begins with [1.2.3], and the tag is 1.2.4"]),
    "not released": ("1.2.3", "## [Unreleased]\n", "", ["begins with [Unreleased]"]),
    "no day": ("1.2.3", "## [1.2.3]\n", "", ["has no day for [1.2.3]"]),
    "no heading": ("1.2.3", "", "", ["has no heading"]),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_stands_in_the_way(release: ModuleType, case: str) -> None:
    """A tag, a clean checkout and a heading with version and day are needed; what is missing is named."""
    version, changelog, changes, wanted = PROBLEMS[case]
    found = list(release.find_problems(version, changelog, changes))
    assert len(found) == len(wanted)
    assert all(text in problem for text, problem in zip(wanted, found, strict=True))


def test_a_wheel_that_lacks_something(release: ModuleType, tmp_path: Path) -> None:
    """A wheel without its compiled part, its page, or with another version is not released."""
    wheel = tmp_path / "jetbus-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("jetbus/py.typed", "")
        packed.writestr("jetbus-1.2.3.dist-info/METADATA", "Version: 1.2.3\n\nText\n")
    found = list(release.check_wheel(wheel, "1.2.4"))
    assert [problem.rpartition(" ")[2] for problem in found[:3]] == [
        "jetbus/peer/_iterator.abi3.so",
        "jetbus/wire/_lane.abi3.so",
        "jetbus/radar/static/index.html",
    ]
    assert found[3:] == [f"{wheel.name} is version 1.2.3, and the tag is 1.2.4"]


@pytest.mark.skipif(
    not handles.COMPILED or not (ROOT / "src/jetbus/radar/static/index.html").exists(),
    reason="needs a compiler and the page of Radar",
)
@pytest.mark.timeout(600)
def test_a_trial(tmp_path: Path) -> None:
    """A trial builds sources and a wheel, checks them, and says what the wheel is good for."""
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--trial", "--folder", tmp_path / "dist"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(file.suffix for file in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]
    assert "manylinux" in ran.stdout or "no auditwheel" in ran.stdout
    assert "a trial: nothing of this is for others" in ran.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_installing_is_told_alike(page: Path) -> None:
    """Until there is a release, every page installs from the sources: no package index has jetbus."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"pip install (?:-U )?'?jetbus", text)
