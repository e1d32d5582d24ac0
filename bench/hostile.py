"""Measure a healthy peer while strangers attack: p99 of its sets, and the daemon's peak memory.

    python bench/hostile.py                        every attack alone, then twenty together
    python bench/hostile.py --only brackets,globs --t 10
    python bench/hostile.py --strict               exit with 1 where p99 is 50 ms or more, or memory 500 MB or more

Needs a quiet machine with two cores at least: attackers, the healthy peer and the daemon each want one. The attacks are
those of tests/hostile, which run in every test with a generous bound. Linux only (/proc).
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import siege

P99_MS = 50.0
MEMORY_MB = 500.0
TOGETHER = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="ATTACKS", help="comma separated attacks")
    parser.add_argument("--t", type=float, default=5.0, metavar="SECONDS", help="seconds of each attack")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--jetd", type=Path, default=Path(sys.executable).with_name("jetd"), metavar="PATH")
    return parser.parse_args()


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def run(jetd: Path, names: list[str], seconds: float) -> tuple[list[float], float]:
    """Attack a fresh daemon; return how long each set took, sorted, and the peak memory."""
    nowhere = ["--unix", "off", "--binary", "off", "--binary-unix", "off", "--log-level", "error"]
    command = [str(jetd), "--tcp", "127.0.0.1:0", "--ws", "127.0.0.1:0", *nowhere]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout is not None
        ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", daemon.stdout.readline())]
        tcp, ws = (("127.0.0.1", port) for port in ports)
        plant = siege.Plant(tcp)
        healthy = siege.Healthy(tcp)
        healthy.set_for(0.5)
        attackers = siege.start(tcp, ws, seconds, names) if names else None
        time.sleep(0.2)
        took_s = healthy.set_for(seconds - 0.2)
        if attackers is not None:
            attackers.kill()
            attackers.wait()
        peak = peak_mb(daemon.pid)
        healthy.close()
        plant.close()
        return took_s, peak
    finally:
        daemon.kill()
        daemon.wait()


def main() -> None:
    args = arguments()
    names = [name for name in args.only.split(",") if name] or list(siege.ATTACKS)
    rounds: list[tuple[str, list[str]]] = [("none", []), *((name, [name]) for name in names)]
    rounds.append((f"{TOGETHER} together", (names * TOGETHER)[:TOGETHER]))
    missed = False
    print("| attack | sets | p50 ms | p99 ms | longest ms | peak MB |\n|---|---|---|---|---|---|")
    for title, group in rounds:
        took_s, peak = run(args.jetd, group, args.t)
        middle, late, longest = (1000 * one for one in (took_s[len(took_s) // 2], siege.p99(took_s), took_s[-1]))
        mark = " **missed**" if late >= P99_MS or peak >= MEMORY_MB else ""
        missed = missed or bool(mark)
        print(f"| {title} | {len(took_s)} | {middle:.1f} | {late:.1f} | {longest:.1f} | {peak:.0f}{mark} |", flush=True)
    if missed and args.strict:
        sys.exit(1)


if __name__ == "__main__":
    main()
