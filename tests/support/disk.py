"""File systems of their own for tests: an ext4 image that can be frozen, and copied as a power loss would leave it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

IMAGE_BYTES = 64 << 20
NEEDED = ("mkfs.ext4", "mount", "umount", "fsfreeze")


def run(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True)


def make_image(image: Path) -> None:
    """Make an empty file system in a file; skips the test, with the reason, where that cannot be mounted."""
    if missing := [word for word in NEEDED if shutil.which(word) is None]:
        pytest.skip(f"a file system of one's own needs {', '.join(missing)}")
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run("mkfs.ext4", "-q", "-F", image)
    probe = image.with_suffix(".probe")
    try:
        with mounted(image, probe):
            pass
    except subprocess.CalledProcessError as problem:
        reason = problem.stderr.decode(errors="replace").strip()
        pytest.skip(f"a file system can be mounted by root only, where loop devices work: {reason}")


@contextlib.contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """Mount an image for the time of a ``with`` block. Nothing is written to it but when somebody asks for that."""
    place.mkdir(exist_ok=True)
    run("mount", "-o", "loop,commit=3600", image, place)
    try:
        yield place
    finally:
        run("umount", place)


@contextlib.contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Let every write to a file system hang for the time of a ``with`` block."""
    run("fsfreeze", "--freeze", place)
    try:
        yield
    finally:
        run("fsfreeze", "--unfreeze", place)
