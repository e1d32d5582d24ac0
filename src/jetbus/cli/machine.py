"""What ``jet doctor`` looks at on this machine, without a daemon: limits, disk, files of a daemon, what is installed.

A check gives findings and raises nothing; it changes nothing and starts nothing that stays.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jetbus.cli.failures import Code

FILES_MIN = 1024
"""A daemon needs a descriptor a connection, and raises its limit as far as the machine lets it."""
FREE_MIN = 0.05
FREE_BYTES_MIN = 1 << 30
JAVA_MIN = 17
JAVA_S = 20.0


class Finding(NamedTuple):
    """What a check has found: ok, warning or wrong."""

    check: str
    state: str
    text: str
    code: Code = Code.OK


def open_files() -> Iterator[Finding]:
    """How many files and connections a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
    text = f"{soft}, a daemon takes up to {most}"
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        yield Finding("open files", "warning", f"{text}; raise it with `ulimit -Hn`, or LimitNOFILE in the service")
    else:
        yield Finding("open files", "ok", text)


def packages() -> Iterator[Finding]:
    """What the past and the tables need."""
    if importlib.util.find_spec("pyarrow") is None:
        yield Finding("history", "warning", "no pyarrow; the past needs it: pip install 'jetbus[history]'")
    else:
        yield Finding("history", "ok", "pyarrow is installed")
    if importlib.util.find_spec("pyspark") is None:
        yield Finding("Spark", "ok", "no pyspark; only `jet pipeline` and `jet sql` need it")
    else:
        yield from _java()


def _java() -> Iterator[Finding]:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    get_it = f"install Java {JAVA_MIN} (Debian: openjdk-{JAVA_MIN}-jre-headless)"
    if program is None or (home and not Path(program).exists()):
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is no java"
        yield Finding("Spark", "warning", f"{where}; {get_it} for `jet pipeline` and `jet sql`")
        return
    try:
        ran = subprocess.run(  # noqa: S603 - the very program that Spark would run
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        yield Finding("Spark", "warning", f"{program} does not run ({problem}); {get_it}")
        return
    found = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    version = int(found[1]) if found else 0
    if version < JAVA_MIN:
        yield Finding("Spark", "warning", f"{program} is Java {version or 'of an unknown version'}; {get_it}")
    else:
        yield Finding("Spark", "ok", f"pyspark is installed, {program} is Java {version}")


def flaw_of_users(file: str, name: str) -> str | None:
    """Why a daemon could not read a users file, which is called by its name; None if it can."""
    from jetbus.daemon.users import Users, UsersFileError

    logging.getLogger("jetbus.users").setLevel(logging.ERROR)  # what it hashes is no news here
    try:
        Users.load(file)
    except UsersFileError as problem:
        return str(problem).replace(file, name)
    return None


def users_file(name: str) -> Iterator[Finding]:
    """Whether a daemon could read its users."""

    def wrong(text: str) -> Finding:
        return Finding("users file", "wrong", text, Code.USAGE)

    try:
        data = Path(name).read_bytes()
        others = Path(name).stat().st_mode & 0o077
    except FileNotFoundError:
        yield wrong(f'{name} does not exist; create it, {{"users": {{}}}} is enough')
        return
    except OSError as problem:
        yield wrong(f"{name} cannot be read ({problem.strerror}); give the daemon's user the right to")
        return
    with tempfile.TemporaryDirectory() as folder:  # a daemon would hash the plain passwords in it
        copy = Path(folder) / "users.json"
        copy.write_bytes(data)
        if problem_text := flaw_of_users(str(copy), name):
            yield wrong(problem_text)
            return
    if others:
        yield Finding("users file", "warning", f"others may read {name}, which has password hashes; chmod 600 it")
    else:
        yield Finding("users file", "ok", name)


def journal_folder(name: str) -> Iterator[Finding]:
    """Whether a journal can grow there."""
    folder = Path(name)
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            "journal", "wrong", f"nothing can be written in {there}; give the daemon's user the right to", Code.USAGE
        )
        return
    usage = shutil.disk_usage(there)
    text = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB free at {name}"
    if usage.free < min(FREE_BYTES_MIN, usage.total * FREE_MIN):
        yield Finding(
            "journal", "wrong", f"the disk is full: {text}; `jet journal prune` drops the oldest", Code.REFUSED
        )
    elif usage.free < usage.total * FREE_MIN:
        yield Finding("journal", "warning", f"the disk is nearly full: {text}; `jet journal prune` drops the oldest")
    else:
        yield Finding("journal", "ok", text)
