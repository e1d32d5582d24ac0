"""The command ``jetd``."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence

from jetbus.daemon import config as settings
from jetbus.daemon.config import Config, ConfigError
from jetbus.daemon.daemon import Daemon
from jetbus.daemon.users import UsersFileError
from jetbus.loops import run

log = logging.getLogger("jetbus.daemon")

MALLOC_MMAP_THRESHOLD, MALLOC_ARENA_MAX = -3, -8
"""Names of parameters of glibc's allocator."""
RETURNED_BYTES = 256 * 1024
"""Blocks of that size go back to the system as soon as they are freed."""
GC_THRESHOLDS = (100_000, 20, 50)
"""The bus makes no cycles on its busy ways, so the collector need not look often."""

SWITCH_S = 0.0005
"""A thread that reads or writes the journal lets the bus go on after so long. The default of CPython, 5 ms, is added to
every message that arrives while a long past is read."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the daemon until SIGTERM or Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        config = settings.load(arguments, os.environ)
        logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("jetbus").setLevel(config.log_level.upper())
        logging.getLogger("jetbus.websocket").setLevel(logging.CRITICAL)
        _raise_file_limit(config.connections_max)
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_S)
        _return_memory()
        run(_serve(config, arguments))
    except (ConfigError, UsersFileError) as problem:
        sys.exit(f"jetd: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(config: Config, arguments: Sequence[str]) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    daemon = Daemon(config)

    async def reload() -> None:
        try:
            # In a thread: a disk that hangs must not hold up the bus.
            daemon.reload(await asyncio.to_thread(settings.load, arguments, os.environ))
        except (ConfigError, UsersFileError) as problem:
            log.error("nothing reloaded: %s", problem)

    reloads: set[asyncio.Task[None]] = set()

    def on_hangup() -> None:
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    await daemon.start()
    gc.collect()
    # These objects live as long as the daemon. The collector need not look at them again.
    gc.freeze()
    left_out = [f"without={','.join(daemon.left_out)}"] if daemon.left_out else []
    print("ready", *(f"{kind}={where}" for kind, where in daemon.listening.items()), *left_out, flush=True)
    notify_systemd("READY=1")
    await stopped.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A second Ctrl-C must not cut off the writing of the journal.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)  # it is stopping already
    notify_systemd("STOPPING=1")
    await daemon.stop()


def notify_systemd(state: str) -> None:
    """Tell systemd, if it started us with ``Type=notify``."""
    where = os.environ.get("NOTIFY_SOCKET")
    if not where:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect("\0" + where[1:] if where.startswith("@") else where)
            sock.sendall(state.encode())
        except OSError as problem:
            log.warning("cannot notify systemd at %s: %s", where, problem)


def _return_memory() -> None:
    """Let freed memory go back to the system, so that a burst of long messages does not stay with the daemon.

    The allocator of glibc raises the size from which on it returns blocks with each long block that is freed, and that
    of Arrow keeps its blocks. Other systems are left as they are.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read when pyarrow is imported, with the journal
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MALLOC_MMAP_THRESHOLD, RETURNED_BYTES)
        mallopt(MALLOC_ARENA_MAX, 2)


def _raise_file_limit(connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 200
    if soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


if __name__ == "__main__":
    main()
