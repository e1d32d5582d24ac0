"""A pump on a bad line: the connection breaks again and again, and every value is recorded all the same.

python examples/badline.py
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import jetbus

ABORT_EVERY = 100
"""Number of values between two breaks of the line."""


def run_pump(values: int, buffer: str) -> None:
    with jetbus.Peer(name="pump", wait=True, buffer=buffer) as peer:
        pressure = peer.add_state("pump/pressure", 2.0, unit="bar")
        for number in range(1, values + 1):
            pressure.change(round(2.0 + math.sin(number / 20), 3))
            if number % ABORT_EVERY == 0:
                peer.abort()
            time.sleep(0.001)
        kept = peer.buffer
        while kept is not None and len(kept):
            print(f"{len(kept)} values wait for their confirmation", flush=True)
            time.sleep(0.2)
        if kept is not None:
            print(f"{kept.confirmed} values are recorded, {kept.dropped} were dropped", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="A pump on a bad line; needs a daemon with a journal.")
    parser.add_argument("--values", type=int, default=1000, metavar="N", help="end after so many values")
    parser.add_argument("--buffer", default="memory", metavar="memory|DIR", help="where values wait")
    options = parser.parse_args()
    try:
        run_pump(options.values, options.buffer)
    except jetbus.NotConnected as problem:
        print(problem, file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
