"""A chat: each of us owns a state with the last line written, and watches everybody else's.

python examples/chat.py ann
"""

from __future__ import annotations

import argparse
import sys

import jetbus

ROOM = "chat/"


def say(line: str) -> None:
    """Print a line at once and as a whole: two threads do."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def told(event: jetbus.Event) -> str:
    """What happened, as a line on the screen."""
    name = event.path.removeprefix(ROOM)
    if event.kind == "add":
        return f"* {name} is here"
    if event.kind == "remove":
        return f"* {name} has left"
    return f"{name}: {event.value}"


def chat(name: str) -> None:
    """Say every line of standard input, until it ends."""
    with jetbus.Peer(name=f"chat of {name}", wait=True) as peer:
        mine = peer.add_state(ROOM + name, "")

        def show(event: jetbus.Event) -> None:
            if event.path != mine.path:
                say(told(event))

        # Every line matters: no newer one takes the place of an older one.
        peer.fetch(starts_with=ROOM, callback=show, policy="every").ready()
        say(f"* you are {name}; write, and end with Ctrl-D")
        for line in sys.stdin:
            mine.change(line.rstrip("\n"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Chat with all who are on the bus; Ctrl-D or Ctrl-C ends it.")
    parser.add_argument("name", help="who you are; nobody else may have that name")
    name = parser.parse_args().name
    try:
        chat(name)
    except jetbus.Occupied:
        print(f"there is a {name} already; take another name", file=sys.stderr)
        return 1
    except jetbus.NotConnected as problem:
        print(problem, file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
