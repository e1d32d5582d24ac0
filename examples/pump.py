"""A pump with limits: too high a speed is adapted with a warning, nonsense is refused, methods start and stop it.

python examples/pump.py
"""

from __future__ import annotations

import argparse
import sys
import threading

import jetbus

SPEED_MAX_RPM = 3000.0
RUNS_ALREADY, STANDS_ALREADY = 1001, 1002
"""Codes of our own: a client finds them in the error it gets."""


def limited(rpm: float) -> jetbus.Adapted | None:
    """Accept a speed (None), take the highest one instead, or refuse it."""
    if rpm < 0:
        raise ValueError(f"a pump does not turn backwards: {rpm:g} rpm")
    if rpm > SPEED_MAX_RPM:
        return jetbus.Adapted(SPEED_MAX_RPM, f"the pump turns at most {SPEED_MAX_RPM:g} rpm")
    return None


def run_pump(seconds: float | None) -> None:
    with jetbus.Peer(name="pump", wait=True) as peer:
        running = peer.add_state("pump/running", False)
        peer.add_state(
            "pump/speed_rpm", 0.0, on_set=limited, type=float, unit="rpm", title="Speed", normal=(0, SPEED_MAX_RPM)
        )

        @peer.method("pump/start")
        def start() -> None:
            if running.value:
                raise jetbus.Refused("the pump runs already", code=RUNS_ALREADY)
            running.change(True)

        @peer.method("pump/stop")
        def stop() -> None:
            if not running.value:
                raise jetbus.Refused("the pump stands already", code=STANDS_ALREADY)
            running.change(False)

        print(f"pump at {peer.url}; set pump/speed_rpm, call {start.path} and {stop.path}", flush=True)
        threading.Event().wait(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description="A pump with limits; Ctrl-C ends it.")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end after so many seconds")
    seconds = parser.parse_args().seconds
    try:
        run_pump(seconds)
    except jetbus.NotConnected as problem:
        print(problem, file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
