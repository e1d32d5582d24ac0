"""Builds Radar's page (``web/``) into the package; everything else about the build is in pyproject.toml.

The page needs Node.js, which not everybody has who installs a bus. Where it cannot be built jetbus is installed without
it, and ``jet radar`` says what is missing. A source distribution has the built page and needs no Node.js.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
WEB = ROOT / "web"
PAGE = ROOT / "src" / "jetbus" / "radar" / "static" / "index.html"
SOURCES = ("src/**/*", "index.html", "package-lock.json", "vite.config.ts")


def is_page_current() -> bool:
    """Return True if the page is newer than all that it is made from."""
    if not PAGE.exists():
        return False
    sources = [file for pattern in SOURCES for file in WEB.glob(pattern) if file.is_file()]
    return all(file.stat().st_mtime <= PAGE.stat().st_mtime for file in sources)


def are_modules_current() -> bool:
    """Return True if npm has installed what the lock file names."""
    installed = WEB / "node_modules" / ".package-lock.json"
    return installed.exists() and installed.stat().st_mtime >= (WEB / "package-lock.json").stat().st_mtime


def build_page() -> None:
    """Build the page with npm, if it is not current and if that is possible."""
    if not WEB.exists() or is_page_current():
        return
    npm = shutil.which("npm")
    if npm is None:
        print("Radar's page is not built: npm was not found; install Node.js 20 or newer.", file=sys.stderr)
        return
    steps = [] if are_modules_current() else [["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]]
    try:
        for arguments in [*steps, ["run", "build"]]:
            subprocess.run([npm, *arguments], cwd=WEB, check=True)
    except subprocess.CalledProcessError as problem:
        print(f"Radar's page is not built: npm {' '.join(problem.cmd[1:])} failed.", file=sys.stderr)


class BuildWithPage(build_py):
    """``build_py`` that builds the page first."""

    def run(self) -> None:
        build_page()
        self.__dict__.pop("data_files", None)  # the list of files, if it was made before the page
        super().run()


class PackWithPage(sdist):
    """``sdist`` that builds the page first."""

    def run(self) -> None:
        build_page()
        super().run()


commands: dict[str, Any] = {"build_py": BuildWithPage, "sdist": PackWithPage}
setup(cmdclass=commands)
