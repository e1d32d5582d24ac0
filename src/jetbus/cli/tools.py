"""The tools of jetpeer, the C++ peer, under their own names: same arguments, same output, same exit codes.

Whoever has scripts for ``jetset HOST PORT PATH int 12`` keeps them; everybody else is better off with ``jet``, which
knows users, TLS, rules and formats. Where a tool takes an address, port 0 means an abstract Unix socket of that name.
Where it is given none it takes the URL in ``JET_URL``, and without that the address that is built into jetpeer's.

Output follows theirs to the byte, which is JSON as jsoncpp lays it out, and so do exit codes: of most tools 0, whatever
happens, since scripts may rely on it. The one difference is a tool that owns something: if it cannot, it ends.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from jetbus.cli.failures import Failure, printable
from jetbus.cli.values import read_value
from jetbus.errors import JetError, NotConnected, TimedOut
from jetbus.peer.address import read_url

PORT = 11122
SOCKET = "/var/run/jet.socket"
"""The abstract Unix socket of every daemon on the same machine."""
METHOD = "theMethod"
SET_S, EXEC_S, OWN_S = 2.71828182846, 10.0, 3.1415927
"""How long an owner may take: for a set, for a call, and for what these tools own."""
TYPES = "bool|int|double|string|json"


class Address(NamedTuple):
    """Where a tool connects to: a URL, and the words in which jetpeer tells of it."""

    url: str | None
    shown: str


def address(host: str, port: int) -> Address:
    """The daemon at a host and port, or at a Unix socket."""
    if port == 0:
        return Address(f"unix://@{host}", host)
    return Address(f"jet://{f'[{host}]' if ':' in host else host}:{port}", f"tcp: {host}:{port}")


def _given(words: list[str], built_in: Address, port: int = 0) -> Address:
    """The address that the first two words name; ``port`` is taken if there is only a host."""
    if words:
        return address(words[0], read_int(words[1]) if len(words) > 1 else port)
    return Address(None, str(read_url())) if os.environ.get("JET_URL") else built_in


# -- values


class BadValue(Exception):
    """A value that is not of the type it was given for."""


def read_int(text: str) -> int:
    """A whole number as C reads it: up to what is no digit, 0 if there is none."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return int(found[1]) if found else 0


def read_double(text: str) -> float:
    """A number as C reads it: as far as it goes, 0 if there is none."""
    found = re.match(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", text)
    return float(found[1]) if found else 0.0


def read_bool(text: str) -> bool:
    """True or false."""
    if text not in ("true", "false"):
        raise BadValue("invalid value for boolean expecting 'true'', or 'false'")
    return text == "true"


def read_json(text: str) -> Any:
    """Any JSON."""
    try:
        return read_value(text)
    except Failure:
        raise BadValue("error while parsing json!") from None


READERS: dict[str, Callable[[str], Any]] = {
    "bool": read_bool,
    "int": read_int,
    "double": read_double,
    "string": str,
    "json": read_json,
}


def styled(value: Any, indent: str = "") -> str:
    """JSON as jsoncpp lays it out: sorted members, one entry a line, tabs, numbers with 17 digits.

    >>> print(styled({"b": 0.1, "a": {}}).expandtabs(4))
    {
        "a" : {},
        "b" : 0.10000000000000001
    }
    """
    inner = indent + "\t"
    if isinstance(value, dict) and value:
        members = (f"{inner}{json.dumps(name)} : {_member(value[name], inner)}" for name in sorted(value))
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inner + styled(entry, inner) for entry in value) + f"\n{indent}]"
    if isinstance(value, float):
        text = f"{value:.17g}"
        return text if "." in text or "e" in text else f"{text}.0"
    return json.dumps(value)


def _member(value: Any, indent: str) -> str:
    """The value of a member: what takes several lines begins on a line of its own."""
    text = styled(value, indent)
    return f"\n{indent}{text}" if "\n" in text else text


def told(problem: JetError) -> str:
    """An error as jetpeer tells it."""
    if isinstance(problem, NotConnected) or (isinstance(problem, TimedOut) and problem.data is None):
        return str(problem)
    error = problem.wire()
    text = f"code: {error['code']}, message: {error['message']}"
    return text if error.get("data") is None else f"{text}, data: {styled(error['data'])}\n"


def say(text: str) -> None:
    """Print, at once: these tools are read through pipes."""
    print(text, flush=True)


def complain(text: str) -> None:
    """Say something on stderr."""
    print(text, file=sys.stderr, flush=True)


# -- tools that ask once


def _asking(where: Address, name: str, ask: Callable[[Any], None], failed: int) -> int:
    """Connect, ask and end; ``failed`` is the exit code if that does not work."""
    from jetbus.cli.quick import QuickPeer

    try:
        peer = QuickPeer(where.url, name=name)
    except JetError:
        complain(f"jet peerAsync could not connect to jetd ({where.shown})!")
        return failed
    with peer:
        try:
            ask(peer)
        except JetError as problem:
            complain(told(problem))
            return failed
    return 0


def jetinfo(words: list[str]) -> int:
    """What the daemon says of itself."""
    if words == ["-h"]:
        say("syntax: jetinfo [ADDRESS PORT]\nsyntax: jetinfo UNIX_SOCKET")
        return 0

    def ask(peer: Any) -> None:
        try:
            answer: dict[str, Any] = {"id": 1, "result": peer.ask("info", {})}
        except JetError as problem:
            answer = {"id": 1, "error": problem.wire()}
        say(f"'{styled(answer)}'")

    return _asking(_given(words, address(SOCKET, 0)), "jetinfo", ask, 0)


def jetget(words: list[str]) -> int:
    """The values of all states whose path contains a text."""
    from jetbus.rules import rule

    if words == ["-h"]:
        say(f"syntax: jetget [ADDRESS [PORT (default {PORT}) [TEXT IN THE PATH]]]")
        return 0

    def ask(peer: Any) -> None:
        for path, value in peer.get(rule(contains=words[2]) if len(words) > 2 else rule()).items():
            say(f"path {styled(path)}\nvalue {styled(value)}")

    return _asking(_given(words, address("127.0.0.1", PORT), PORT), "jetget", ask, 0)


def jetset(words: list[str]) -> int:
    """Ask the owner of a state for another value."""
    syntax = f"syntax: jetset ADDRESS PORT PATH {TYPES} VALUE"
    if len(words) != 5 or words[3] not in READERS:
        say(syntax)
        return 0
    host, port, path, kind, text = words
    try:
        value = READERS[kind](text)
    except BadValue as problem:
        complain(str(problem))
        return 1
    return _asking(address(host, read_int(port)), "jetset", lambda peer: peer.set(path, value, SET_S), 0)


def jetexec(words: list[str]) -> int:
    """Call a method."""
    if len(words) < 3:
        say(f"syntax: jetexec ADDRESS PORT (usually {PORT}) PATH [JSON]")
        return 0
    params: dict[str, Any] = {"path": words[2], "timeout": EXEC_S}
    if len(words) > 3 and words[3]:
        try:
            params["args"] = read_value(words[3])
        except Failure as problem:
            complain(f"Could not parse parameters for method: '{problem}'")
            return 1
    if params.get("args") is None:
        params.pop("args", None)
        say("calling without any parameter...")

    def ask(peer: Any) -> None:
        say(f"Result: {styled(peer.ask('call', params, EXEC_S + 2.0, path=words[2]))}")

    return _asking(address(words[0], read_int(words[1])), "jetexec", ask, 1)


# -- tools that stay


def _staying(where: Address, name: str, work: Callable[[Any], Any], failed: int) -> int:
    """Connect and stay until Ctrl-C; ``work`` is what to do first, and whether it could be done."""
    import asyncio

    from jetbus.loops import run
    from jetbus.peer import PeerAsync

    async def stay() -> int:
        peer = PeerAsync(where.url, name=name)
        try:
            await peer.connect()
        except JetError:
            complain(f"jet peerAsync could not connect to jetd ({where.shown})!")
            return failed
        async with peer:
            if not await work(peer):
                return 1
            await asyncio.Event().wait()
        return 0

    return run(stay())


def jetcat(words: list[str]) -> int:
    """Everything that happens to the states and methods whose path contains a text."""
    if words == ["-h"]:
        say(f"syntax: jetcat [ADDRESS PORT (usually {PORT}) [TEXT IN THE PATH]]\nsyntax: jetcat UNIX_SOCKET")
        return 0

    def show(event: Any) -> None:
        kind = "method" if event.value is None else "state"
        say(f"{kind} '{printable(event.path)}' {_HAPPENED[event.kind]}")
        if event.value is not None:
            say(styled(event.value))

    async def work(peer: Any) -> bool:
        keywords = {"contains": words[2]} if len(words) > 2 else {}
        peer.fetch(callback=show, policy="every", **keywords)
        return True

    return _staying(_given(words, address(SOCKET, 0)), "jetcat", work, 0)


_HAPPENED = {"add": "added", "change": "changed", "remove": "removed"}


def jetstate(words: list[str]) -> int:
    """Own a state on this machine's bus."""
    from jetbus.peer import UNCHANGED

    if len(words) != 3 or words[1] not in READERS:
        say(f"syntax: jetstate PATH {TYPES} VALUE\n\nOwns a state on the bus of this machine, or of JET_URL")
        return 0
    path, kind, text = words
    try:
        value = READERS[kind](text)
    except BadValue as problem:
        complain(str(problem))
        return 1
    if kind == "json":
        say(f"adding state '{path}'...")

    async def work(peer: Any) -> bool:
        def take(asked: Any) -> Any:
            if styled(asked) == styled(state.value):
                say(f"state stays on previous value {styled(asked)}")
                return UNCHANGED
            say(f"set state to {styled(asked)}")
            return None

        try:
            state = await peer.add_state(path, value, on_set=take, timeout_s=OWN_S)
        except JetError as problem:
            complain(f"adding state failed!\n{styled({'error': problem.wire(), 'id': 1})}")
            return False
        say("added state")
        return True

    return _staying(_given([], address(SOCKET, 0)), "jetstate", work, 1)


def jetmethod(_words: list[str]) -> int:
    """Own a method on this machine's bus that gives back what it is called with."""
    import asyncio

    from jetbus.peer.elements import OwnedMethod

    class Echo(OwnedMethod):
        """A method that takes any JSON: C++ callers need not give an array or an object."""

        def called(self, args: Any) -> Any:
            say(f"method call with: {styled(args)}")
            return args

    async def work(peer: Any) -> bool:
        added = asyncio.get_running_loop().create_future()
        say(f"adding method '{METHOD}'...")
        try:
            peer.session.add(Echo(METHOD, Echo.called, None, OWN_S), added)
            await added
        except JetError:
            complain("adding method failed!")
            return False
        say("added method")
        return True

    return _staying(_given([], address("::1", PORT)), "jetmethod", work, 1)


class Tool(NamedTuple):
    """A tool: what it does, its arguments for the docs, and the command of ``jet`` that can do more."""

    run: Callable[[list[str]], int]
    arguments: str
    instead: str


TOOLS = {
    "jetcat": Tool(jetcat, "[ADDRESS PORT [TEXT]]", "watch"),
    "jetget": Tool(jetget, "[ADDRESS PORT [TEXT]]", "get"),
    "jetset": Tool(jetset, f"ADDRESS PORT PATH {TYPES} VALUE", "set"),
    "jetexec": Tool(jetexec, "ADDRESS PORT PATH [JSON]", "call"),
    "jetinfo": Tool(jetinfo, "[ADDRESS PORT]", "version"),
    "jetstate": Tool(jetstate, f"PATH {TYPES} VALUE", "add"),
    "jetmethod": Tool(jetmethod, "", "method"),
}


def run_tool(name: str, words: list[str]) -> int:
    """Run a tool; gives its exit code."""
    try:
        return TOOLS[name].run(words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except (ValueError, OverflowError) as problem:  # an address that is none, a number that JSON cannot tell
        complain(str(problem))
        return 1


def main() -> NoReturn:
    """Run the tool whose name the program has."""
    from jetbus.cli.main import main as run

    run()
