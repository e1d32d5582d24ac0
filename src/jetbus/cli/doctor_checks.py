"""Checks of ``jet doctor`` that need no daemon: limits, disk, files of a daemon, installed packages.

A check yields findings and raises nothing. It changes nothing and leaves no process behind.
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

from jetbus.cli.exit_codes import Code

FILES_MIN = 1024
"""A daemon needs one descriptor per connection, and raises its soft limit to the hard limit."""
FREE_MIN = 0.05
FREE_BYTES_MIN = 1 << 30
JAVA_MIN = 17
JAVA_S = 20.0


class Finding(NamedTuple):
    """Result of a check: its state is ok, warning or wrong."""

    check: str
    state: str
    text: str
    code: Code = Code.OK


def check_open_files() -> Iterator[Finding]:
    """Check how many files and connections a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
    text = f"{soft}, raised by a daemon up to {most}"
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        yield Finding("open files", "warning", f"{text}; raise it with `ulimit -Hn`, or LimitNOFILE in the service")
    else:
        yield Finding("open files", "ok", text)


def check_packages() -> Iterator[Finding]:
    """Check the optional packages for journals and tables."""
    if importlib.util.find_spec("pyarrow") is None:
        yield Finding("history", "warning", "pyarrow is missing; journals need it: pip install 'jetbus[history]'")
    else:
        yield Finding("history", "ok", "pyarrow is installed")
    if importlib.util.find_spec("pyspark") is None:
        yield Finding("Spark", "ok", "pyspark is not installed; only `jet pipeline` and `jet sql` need it")
    else:
        yield from _check_java()


def _check_java() -> Iterator[Finding]:
    # In the order in which Spark looks: a wrong JAVA_HOME is not made up for by a good Java on the PATH.
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    get_it = f"install Java {JAVA_MIN} (Debian: openjdk-{JAVA_MIN}-jre-headless)"
    if program is None or (home and not Path(program).exists()):
        where = f"JAVA_HOME is {home}, which has no Java" if home else "Java is not installed"
        yield Finding("Spark", "warning", f"{where}; {get_it} for `jet pipeline` and `jet sql`")
        return
    try:
        ran = subprocess.run(  # noqa: S603 - the very program that Spark would run
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        yield Finding("Spark", "warning", f"{program} does not run ({problem}); {get_it}")
        return
    # java -version writes to stderr.
    found = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    version = int(found[1]) if found else 0
    if version < JAVA_MIN:
        yield Finding("Spark", "warning", f"{program} is Java {version or '(unknown version)'}; {get_it}")
    else:
        yield Finding("Spark", "ok", f"pyspark is installed, {program} is Java {version}")


def find_users_problem(file: str, name: str) -> str | None:
    """Return why a daemon cannot read a users file, called ``name`` in the text; None if it can."""
    from jetbus.daemon.users import Users, UsersFileError

    logging.getLogger("jetbus.users").setLevel(logging.ERROR)  # its messages about hashing are of no interest here
    try:
        Users.load(file)
    except UsersFileError as problem:
        # The file that was read is a temporary one, of which the user knows nothing.
        return str(problem).replace(file, name)
    return None


def check_users_file(name: str) -> Iterator[Finding]:
    """Check that a daemon can read its users file."""

    def wrong(text: str) -> Finding:
        return Finding("users file", "wrong", text, Code.USAGE)

    try:
        data = Path(name).read_bytes()
        others = Path(name).stat().st_mode & 0o077
    except FileNotFoundError:
        yield wrong(f'{name} does not exist; create it, {{"users": {{}}}} is enough')
        return
    except OSError as problem:
        yield wrong(f"cannot read {name} ({problem.strerror}); make it readable for the user of the daemon")
        return
    with tempfile.TemporaryDirectory() as folder:  # loading it hashes plain passwords and rewrites the file
        copy = Path(folder) / "users.json"
        copy.write_bytes(data)
        if problem_text := find_users_problem(str(copy), name):
            yield wrong(problem_text)
            return
    if others:
        yield Finding(
            "users file", "warning", f"other users can read {name}, which has password hashes; run `chmod 600 {name}`"
        )
    else:
        yield Finding("users file", "ok", name)


def check_journal_folder(name: str) -> Iterator[Finding]:
    """Check that a journal can be written to a folder, and that its disk has room."""
    folder = Path(name)
    # The daemon makes the folder itself, so the nearest folder that exists is the one to check.
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            "journal", "wrong", f"cannot write to {there}; make it writable for the user of the daemon", Code.USAGE
        )
        return
    usage = shutil.disk_usage(there)
    text = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB free at {name}"
    # Full is below both limits: 5 % of a large disk are plenty, and a small one need not have 1 GB free.
    if usage.free < min(FREE_BYTES_MIN, usage.total * FREE_MIN):
        yield Finding(
            "journal", "wrong", f"the disk is full: {text}; `jet journal prune` drops the oldest events", Code.REFUSED
        )
    elif usage.free < usage.total * FREE_MIN:
        yield Finding(
            "journal", "warning", f"the disk is nearly full: {text}; `jet journal prune` drops the oldest events"
        )
    else:
        yield Finding("journal", "ok", text)
