"""Builds what is released, and checks it: `make release`.

The wheel is built from the packed sources, as a user's pip would do it. Nothing is uploaded: the last lines say what to
press. With ``--trial`` any commit will do, which is how a test tries it.

    tag v1.2.3 of a clean checkout  ->  heading [1.2.3] of CHANGELOG.md  ->  dist/jetbus-1.2.3.tar.gz, .whl
"""

from __future__ import annotations

import argparse
import email
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEEDED = (
    "jetbus/peer/_iterator.abi3.so",
    "jetbus/wire/_lane.abi3.so",
    "jetbus/radar/static/index.html",
    "jetbus/py.typed",
)
"""What a wheel for users must have: the compiled parts, the page of Radar, and the mark of typed packages."""


def find_problems(version: str | None, changelog: str, changes: str) -> Iterator[str]:
    """Yield what stands in the way of a release: no tag, changes that are not committed, a wrong heading."""
    if version is None:
        yield "this commit has no tag such as v1.2.3; tag it: git tag -a v1.2.3"
    if changes:
        yield f"there are changes that are not committed, first {changes.splitlines()[0].strip()}; commit them"
    heading = re.search(r"^## \[(.+?)\](?: - (\S+))?$", changelog, re.MULTILINE)
    if heading is None:
        yield "CHANGELOG.md has no heading such as ## [1.2.3] - 2026-03-01; write one"
    elif version is not None and heading[1] != version:
        yield f"CHANGELOG.md begins with [{heading[1]}], and the tag is {version}; write ## [{version}] - and the day"
    elif version is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2] or ""):
        yield f"CHANGELOG.md has no day for [{version}]; write ## [{version}] - 2026-03-01"


def check_wheel(wheel: Path, version: str | None) -> Iterator[str]:
    """Yield what a wheel lacks."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        head = email.message_from_bytes(packed.read(metadata))
    yield from (f"{wheel.name} has no {name}" for name in NEEDED if name not in names)
    if version is not None and head["Version"] != version:
        yield f"{wheel.name} is version {head['Version']}, and the tag is {version}"
    if not str(head.get_payload()).strip():
        yield f"{wheel.name} has no description; README.md is missing in it"


def repair(wheel: Path, folder: Path) -> str:
    """Make the wheel one for all Linux distributions, where auditwheel is installed; return a sentence about it."""
    program = shutil.which("auditwheel")
    if program is None or shutil.which("patchelf") is None:
        return (
            f"{wheel.name} runs on this kind of Linux only, and PyPI takes no such wheel: there is no auditwheel with"
            " patchelf here; install both and repeat, or upload the sources alone"
        )
    # Named, because auditwheel guesses it from the first compiled part, and that one needs nothing of the C library.
    platform_tag = f"manylinux2014_{platform.machine()}"
    run(program, "repair", "--plat", platform_tag, "--wheel-dir", folder, wheel)
    wheel.unlink()
    (made,) = folder.glob("*manylinux*.whl")
    return f"{made.name} runs on Linux distributions of its manylinux tag"


def run(*command: str | Path) -> str:
    """Run a command and return what it printed."""
    words = list(map(str, command))
    ran = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own words
    return ran.stdout


def read_version() -> str | None:
    """Return the version of the tag of this commit; None if it has none."""
    tags = run("git", "tag", "--points-at", "HEAD").split()
    return next((tag.removeprefix("v") for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+\w*", tag)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build and check what is released.")
    parser.add_argument("--trial", action="store_true", help="build any commit, tagged or not")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where to build; default: dist")
    options = parser.parse_args()
    version = None if options.trial else read_version()
    if not options.trial:
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        stop(list(find_problems(version, changelog, run("git", "status", "--porcelain"))))
    shutil.rmtree(options.folder, ignore_errors=True)
    print("building the sources, and the wheel from them ...", flush=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", options.folder, ROOT)
    (wheel,) = options.folder.glob("*.whl")
    stop(list(check_wheel(wheel, version)))
    print(repair(wheel, options.folder))
    for file in sorted(options.folder.iterdir()):
        print(f"{file.stat().st_size:>12,} bytes  {file}")
    if version is None:
        print("a trial: nothing of this is for others")
    else:
        print(f"all is well. To release it: git push origin v{version}; twine upload {options.folder}/*")


def stop(problems: list[str]) -> None:
    """Print problems and exit, if there are any."""
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
