"""The tools of jetpeer, the C++ peer, with the same names, arguments, output and exit codes.

They exist for scripts such as ``jetset HOST PORT PATH int 12``; ``jet`` offers more: users, TLS, rules and formats.
Where a tool takes an address, port 0 means an abstract Unix socket of that name. Without an address a tool uses the URL
in ``JET_URL``, or else the default address of the tool in jetpeer.

The output is the same to the byte (JSON as formatted by jsoncpp), and so are the exit codes: most tools return 0 even
after an error, since scripts may rely on it. One difference: a tool that cannot add its state or method ends.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from jetbus.cli.arguments import read_value
from jetbus.cli.exit_codes import Failure, escape
from jetbus.errors import JetError, NotConnected, TimedOut
from jetbus.json_types import Json, JsonObject
from jetbus.peer.address import DaemonAddress, read_url

if TYPE_CHECKING:
    from jetbus.peer import Event, PeerAsync
    from jetbus.peer.simple import SimplePeer

PORT = 11122
SOCKET = "/var/run/jet.socket"
"""The abstract Unix socket of every daemon on the same machine."""
METHOD = "theMethod"
SET_S, EXEC_S, OWN_S = 2.71828182846, 10.0, 3.1415927
"""Time limits for owners: for a set, for a call, and for elements of these tools."""
TYPES = "bool|int|double|string|json"


def make_address(host: str, port: int) -> DaemonAddress:
    """Return the address of a host and port; port 0 means a Unix socket."""
    if port == 0:
        return DaemonAddress(f"unix://@{host}")
    return DaemonAddress(f"jet://{f'[{host}]' if ':' in host else host}:{port}")


def _choose_address(words: list[str], built_in: DaemonAddress, port: int = 0) -> DaemonAddress:
    """Return the address in the first two words; ``port`` is used if there is only a host."""
    if words:
        return make_address(words[0], read_int(words[1]) if len(words) > 1 else port)
    return DaemonAddress() if os.environ.get("JET_URL") else built_in


def _show_address(where: DaemonAddress) -> str:
    """Return an address as jetpeer prints it, unless it is that of the environment."""
    endpoint = read_url(where.url)
    if where.url is None:
        return str(endpoint)
    return endpoint.path.removeprefix("@") if endpoint.transport == "unix" else f"tcp: {endpoint.host}:{endpoint.port}"


# -- values


class BadValue(Exception):
    """Value that does not have the given type."""


def read_int(text: str) -> int:
    """Parse an integer as C does: up to the first other character, 0 without digits."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return int(found[1]) if found else 0


def read_double(text: str) -> float:
    """Parse a number as C does: up to the first other character, 0 without digits."""
    found = re.match(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", text)
    return float(found[1]) if found else 0.0


def read_bool(text: str) -> bool:
    """Parse ``true`` or ``false``."""
    if text not in ("true", "false"):
        # The text of jetpeer with its misplaced quotes, for which scripts may look.
        raise BadValue("invalid value for boolean expecting 'true'', or 'false'")
    return text == "true"


def read_json(text: str) -> Json:
    """Parse JSON."""
    try:
        return read_value(text)
    except Failure:
        raise BadValue("error while parsing json!") from None


READERS: dict[str, Callable[[str], Json]] = {
    "bool": read_bool,
    "int": read_int,
    "double": read_double,
    "string": str,
    "json": read_json,
}


def format_json(value: Json, indent: str = "") -> str:
    """Format JSON as jsoncpp does: sorted members, one entry per line, tabs, numbers with 17 digits.

    >>> print(format_json({"b": 0.1, "a": {}}).expandtabs(4))
    {
        "a" : {},
        "b" : 0.10000000000000001
    }
    """
    inner = indent + "\t"
    if isinstance(value, dict) and value:
        members = (f"{inner}{json.dumps(name)} : {_format_member(value[name], inner)}" for name in sorted(value))
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inner + format_json(entry, inner) for entry in value) + f"\n{indent}]"
    if isinstance(value, float):
        text = f"{value:.17g}"
        # jsoncpp marks floats, so that they are not read back as integers.
        return text if "." in text or "e" in text else f"{text}.0"
    return json.dumps(value)


def _format_member(value: Json, indent: str) -> str:
    """Format the value of a member; one of several lines starts on a line of its own."""
    text = format_json(value, indent)
    return f"\n{indent}{text}" if "\n" in text else text


def format_error(problem: JetError) -> str:
    """Format an error as jetpeer does."""
    # They did not come from a daemon, so they have no code or data to print.
    if isinstance(problem, NotConnected) or (isinstance(problem, TimedOut) and problem.data is None):
        return str(problem)
    error = problem.wire()
    text = f"code: {error['code']}, message: {error['message']}"
    return text if error.get("data") is None else f"{text}, data: {format_json(error['data'])}\n"


def print_line(text: str) -> None:
    """Print a line and flush it, since these tools are often read through pipes."""
    print(text, flush=True)


def print_error(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


# -- tools that ask once


def _ask_once(where: DaemonAddress, name: str, ask: Callable[[SimplePeer], object], failed: int) -> int:
    """Connect, send requests and return the exit code; ``failed`` is the code for an error."""
    from jetbus.peer.simple import SimplePeer

    try:
        peer = SimplePeer(where.url, name=name)
    except JetError:
        print_error(f"jet peerAsync could not connect to jetd ({_show_address(where)})!")
        return failed
    with peer:
        try:
            ask(peer)
        except JetError as problem:
            print_error(format_error(problem))
            return failed
    return 0


def jetinfo(words: list[str]) -> int:
    """Print the name, version and features of the daemon."""
    if words == ["-h"]:
        print_line("syntax: jetinfo [ADDRESS PORT]\nsyntax: jetinfo UNIX_SOCKET")
        return 0

    def ask(peer: SimplePeer) -> None:
        try:
            answer: JsonObject = {"id": 1, "result": peer.ask("info", {})}
        except JetError as problem:
            # Not a failure: lua-jet does not know the service, and its error is the answer to print.
            answer = {"id": 1, "error": problem.wire()}
        print_line(f"'{format_json(answer)}'")

    return _ask_once(_choose_address(words, make_address(SOCKET, 0)), "jetinfo", ask, 0)


def jetget(words: list[str]) -> int:
    """Print the values of all states with a text in their path."""
    from jetbus.rules import rule

    if words == ["-h"]:
        print_line(f"syntax: jetget [ADDRESS [PORT (default {PORT}) [TEXT IN THE PATH]]]")
        return 0

    def ask(peer: SimplePeer) -> None:
        for path, value in peer.get_all(rule(contains=words[2]) if len(words) > 2 else rule()).items():
            print_line(f"path {format_json(path)}\nvalue {format_json(value)}")

    return _ask_once(_choose_address(words, make_address("127.0.0.1", PORT), PORT), "jetget", ask, 0)


def jetset(words: list[str]) -> int:
    """Set a state."""
    syntax = f"syntax: jetset ADDRESS PORT PATH {TYPES} VALUE"
    # A wrong command line prints the syntax and is not an error, as in jetpeer.
    if len(words) != 5 or words[3] not in READERS:
        print_line(syntax)
        return 0
    host, port, path, kind, text = words
    try:
        value = READERS[kind](text)
    except BadValue as problem:
        print_error(str(problem))
        return 1
    return _ask_once(make_address(host, read_int(port)), "jetset", lambda peer: peer.set(path, value, SET_S), 0)


def jetexec(words: list[str]) -> int:
    """Call a method."""
    if len(words) < 3:
        print_line(f"syntax: jetexec ADDRESS PORT (usually {PORT}) PATH [JSON]")
        return 0
    params: JsonObject = {"path": words[2], "timeout": EXEC_S}
    if len(words) > 3 and words[3]:
        try:
            params["args"] = read_value(words[3], has_option=False)
        except Failure as problem:
            print_error(f"Could not parse parameters for method: '{problem}'")
            return 1
    # null as JSON means a call without arguments.
    if params.get("args") is None:
        params.pop("args", None)
        print_line("calling without any parameter...")

    def ask(peer: SimplePeer) -> None:
        # Longer than the daemon waits for the owner, so that the error is that of the daemon.
        print_line(f"Result: {format_json(peer.ask('call', params, EXEC_S + 2.0, path=words[2]))}")

    return _ask_once(make_address(words[0], read_int(words[1])), "jetexec", ask, 1)


# -- tools that stay


def _stay_connected(where: DaemonAddress, name: str, work: Callable[[PeerAsync], Awaitable[bool]], failed: int) -> int:
    """Connect and stay until Ctrl-C; ``work`` runs first, and returns False if it failed."""
    import asyncio

    from jetbus.loops import run
    from jetbus.peer import PeerAsync

    async def stay() -> int:
        peer = PeerAsync(where.url, name=name)
        try:
            await peer.connect()
        except JetError:
            print_error(f"jet peerAsync could not connect to jetd ({_show_address(where)})!")
            return failed
        async with peer:
            if not await work(peer):
                return 1
            await asyncio.Event().wait()
        return 0

    return run(stay())


def jetcat(words: list[str]) -> int:
    """Print every change of the states and methods with a text in their path."""
    from jetbus.rules import rule

    if words == ["-h"]:
        print_line(f"syntax: jetcat [ADDRESS PORT (usually {PORT}) [TEXT IN THE PATH]]\nsyntax: jetcat UNIX_SOCKET")
        return 0

    def show(event: Event) -> None:
        # Known by the missing value, so a state with the value null is printed as a method, too.
        kind = "method" if event.value is None else "state"
        print_line(f"{kind} '{escape(event.path)}' {_HAPPENED[event.kind]}")
        if event.value is not None:
            print_line(format_json(event.value))

    async def work(peer: PeerAsync) -> bool:
        peer.fetch(rule(contains=words[2]) if len(words) > 2 else None, show, policy="every")
        return True

    return _stay_connected(_choose_address(words, make_address(SOCKET, 0)), "jetcat", work, 0)


_HAPPENED = {"add": "added", "change": "changed", "remove": "removed"}


def jetstate(words: list[str]) -> int:
    """Own a state on the bus of this machine."""
    from jetbus.peer import UNCHANGED

    if len(words) != 3 or words[1] not in READERS:
        print_line(f"syntax: jetstate PATH {TYPES} VALUE\n\nOwns a state on the bus of this machine, or of JET_URL")
        return 0
    path, kind, text = words
    try:
        value = READERS[kind](text)
    except BadValue as problem:
        print_error(str(problem))
        return 1
    if kind == "json":
        print_line(f"adding state '{path}'...")

    async def work(peer: PeerAsync) -> bool:
        def take(asked: Json) -> Json:
            # Compared as text, since True == 1 and 1 == 1.0 in Python.
            if format_json(asked) == format_json(state.value):
                print_line(f"state stays on previous value {format_json(asked)}")
                return UNCHANGED
            print_line(f"set state to {format_json(asked)}")
            return None

        try:
            state = await peer.add_state(path, value, on_set=take, timeout_s=OWN_S)
        except JetError as problem:
            print_error(f"adding state failed!\n{format_json({'error': problem.wire(), 'id': 1})}")
            return False
        print_line("added state")
        return True

    return _stay_connected(_choose_address([], make_address(SOCKET, 0)), "jetstate", work, 1)


def jetmethod(_words: list[str]) -> int:
    """Own a method on the bus of this machine that returns its arguments."""
    import asyncio

    from jetbus.peer.elements import OwnedMethod

    class Echo(OwnedMethod):
        """Method that takes any JSON, since C++ callers may send neither an array nor an object."""

        def run(self, args: Json) -> Json:
            print_line(f"method call with: {format_json(args)}")
            return args

    async def work(peer: PeerAsync) -> bool:
        added = asyncio.get_running_loop().create_future()
        print_line(f"adding method '{METHOD}'...")
        try:
            # Not ``add_method``, since its functions take the arguments of an array or an object only.
            peer.session.add(Echo(METHOD, lambda *args: args, None, OWN_S), added)
            await added
        except JetError:
            print_error("adding method failed!")
            return False
        print_line("added method")
        return True

    return _stay_connected(_choose_address([], make_address("::1", PORT)), "jetmethod", work, 1)


class Tool(NamedTuple):
    """Tool with its arguments for the docs, and the command of ``jet`` that replaces it."""

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
    """Run a tool and return its exit code."""
    try:
        return TOOLS[name].run(words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except (ValueError, OverflowError) as problem:  # a malformed address, or a number that JSON cannot represent
        print_error(str(problem))
        return 1
