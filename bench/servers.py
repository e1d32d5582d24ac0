"""The processes a comparison needs: our daemon, node-jet's and the brokers of the machine.

Each one listens on a free port of the loopback address, keeps nothing on disk, and is stopped by its process
id when its `with` block ends, however that happens; should this program be killed, the kernel stops them.
"""

import ctypes
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from compare import Daemon

BENCH = Path(__file__).resolve().parent
BUILD = BENCH / "build"
NODE_JET = "2.1.2"
NODE_JET_DAEMON = """
const { Daemon } = require('node-jet')
new Daemon().listen({ tcpPort: { host: '127.0.0.1', port: Number(process.argv[1]) } })
"""
# As root it would change its user, and the kernel then forgets that it is to end with us.
MOSQUITTO_CONF = """
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_type error
user {user}
"""


class UnavailableError(Exception):
    """This counterpart cannot be measured here; the text says why."""


@dataclass(frozen=True)
class Kind:
    """How one counterpart is started: command(port) builds, installs or looks up its program."""

    name: str
    command: Callable[[int], list[str]]
    version: tuple[str, ...] = ()  # a command that prints the version
    proto: str = ""  # as in compare.py: "" is Jet
    cwd: Path = BENCH
    binary: str = ""  # the option that opens a port for Jet's binary protocol, too


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin")
    if not found:
        raise UnavailableError(f"{name} is not installed")
    return found


def jetd(path: Path) -> Kind:
    def command(port: int) -> list[str]:
        if not path.exists():
            raise UnavailableError(f"there is no {path}; run `make install` or name the daemon with --jetd")
        off = [word for option in ("--ws", "--unix", "--binary-unix") for word in (option, "off")]
        return [str(path), "--tcp", f"127.0.0.1:{port}", *off]

    return Kind("jetd", command, (str(path), "--version"), binary="--binary")


def jetd_journal(path: Path) -> Kind:
    """The same, keeping a journal, which is dropped before the next start."""
    folder = BUILD / "journal"

    def command(port: int) -> list[str]:
        shutil.rmtree(folder, ignore_errors=True)
        return [*jetd(path).command(port), "--binary", "off", "--journal", str(folder), "--journal-keep-mb", "512"]

    return Kind("jetd-journal", command, (str(path), "--version"), "journal")


def node_jet(port: int) -> list[str]:
    install_node_jet(BUILD / "node")
    return [program("node"), "-e", NODE_JET_DAEMON, str(port)]


def install_node_jet(folder: Path) -> None:
    if (folder / "node_modules" / "node-jet" / "package.json").exists():
        return
    npm = program("npm")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n')
    print(f"installing node-jet {NODE_JET} into {folder.relative_to(BENCH.parent)}", file=sys.stderr)
    options = ["--save-exact", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(
            [npm, "install", *options, f"node-jet@{NODE_JET}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"npm could not install node-jet {NODE_JET} within 120 s") from None
    if done.returncode:
        raise UnavailableError(f"npm could not install node-jet {NODE_JET}: {done.stderr.strip()[:200]}")


def redis(port: int) -> list[str]:
    options = [
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--maxmemory",
        "256mb",
        "--dir",
        str(BUILD),
    ]
    return [program("redis-server"), "--port", str(port), *options]


def nats(port: int) -> list[str]:
    return [program("nats-server"), "-a", "127.0.0.1", "-p", str(port)]


def mosquitto(port: int) -> list[str]:
    found = program("mosquitto")
    conf = BUILD / "mosquitto.conf"
    conf.write_text(MOSQUITTO_CONF.format(port=port, user=getpass.getuser()))
    return [found, "-c", str(conf)]


def null_each(port: int) -> list[str]:
    return [str(BUILD / "nulljet"), str(port), "each"]


def null_batch(port: int) -> list[str]:
    return [str(BUILD / "nulljet"), str(port), "batch"]


def kinds(jetd_path: Path) -> list[Kind]:
    """Ours first, then the one the bars are about."""
    return [
        jetd(jetd_path),
        jetd_journal(jetd_path),
        Kind("node-jet", node_jet, ("node", "--version"), cwd=BUILD / "node"),
        Kind("redis", redis, ("redis-server", "--version"), "redis"),
        Kind("nats", nats, ("nats-server", "--version"), "nats"),
        Kind("mosquitto", mosquitto, ("mosquitto", "-h"), "mqtt"),
        Kind("null-each", null_each, proto="null"),
        Kind("null-batch", null_batch, proto="null"),
    ]


def compile_c(name: str) -> Path:
    """cc NAME.c into build/, when the source is newer."""
    source, binary = BENCH / f"{name}.c", BUILD / name
    BUILD.mkdir(exist_ok=True)
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([program("cc"), "-O2", "-Wall", "-o", str(binary), str(source)], check=True, timeout=120)
    return binary


def version_of(kind: Kind) -> str:
    if not kind.version:
        return ""
    try:
        command = [program(kind.version[0]), *kind.version[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (UnavailableError, OSError, subprocess.TimeoutExpired):
        return ""
    number = re.search(r"\d+\.\d+[\w.+-]*", done.stdout)
    first = number[0] if number else ""
    return f"{NODE_JET} on Node.js {first}" if kind.name == "node-jet" else first


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def die_with_parent() -> None:
    """Linux: a server must not outlive a benchmark that was killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@contextmanager
def serving(kind: Kind) -> Iterator[list[Daemon]]:
    """The running server as a Daemon to measure; one with a binary port, too, is followed by that as another."""
    BUILD.mkdir(exist_ok=True)
    port, binary_port = free_ports(2)
    command = kind.command(port)
    if kind.binary:
        command += [kind.binary, f"127.0.0.1:{binary_port}"]
    log = BUILD / f"{kind.name}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=kind.cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C is ours to handle
            preexec_fn=die_with_parent,
        )
    try:
        daemons = [Daemon(kind.name, f"127.0.0.1:{port}", kind.proto, process.pid)]
        if kind.binary:
            daemons.append(Daemon(f"{kind.name}-binary", f"127.0.0.1:{binary_port}", "binary", process.pid))
        for daemon in daemons:
            wait_listening(process, daemon, log)
        yield daemons
    finally:
        stop(process)


def wait_listening(process: subprocess.Popen[bytes], daemon: Daemon, log: Path, seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        if daemon.wait_ready(0.2):
            return
    why = "ended at once" if process.poll() is not None else f"does not listen after {seconds:.0f} s"
    raise UnavailableError(f"{daemon.name} {why}: {log.read_text(errors='replace').strip()[-400:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
