"""Wire transcripts: what peers send and exactly what the daemon must answer, as readable text files.

    == a state is added                   a section: its own peers, an empty bus
    @ --tree flat                         options of the daemon
    @users {"users":{...}}                a users file for the daemon
    A connect tcp                         tcp, unix, ws, or * for one run with each of them; binary
    A> {"id":1,"method":"echo"}           A sends this frame
    A>> 00000000                          A sends these bytes (hexadecimal), without framing
    A< {"id":1,"result":true}             the next frame to A has exactly these bytes
    A< {"id":1,"result":1} || {"id":2}    ... one of these
    A<~ {"b":1,"a":2}                     the next frame to A is this JSON, in whatever order and spelling
    A<& {"id":1,"result":true}            this frame is somewhere among those that came to A
    A<? {"error":$any}                    this frame may come next, or not
    A<|                                   nothing more came to A
    A close                               A closes its connection
    A closed                              the daemon closes the connection of A
    # why                                 a comment

In a frame `$any` stands for any JSON, `$ok` for `true` or `{}`, `$text` for any string; `$r1` (any digit) for a
string that is remembered when it is first met and stands for the same string from then on. Frames of a binary peer are
bytes in hexadecimal and in single quotes; there `$i1` is a number of four bytes that is remembered.

Frames of different peers are handled in the order of the transcript: before another peer sends, an echo proves that
what was sent so far has been handled. At the end of a section nothing may be left over at any peer.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.wire import Closed, Wire

if TYPE_CHECKING:
    from pathlib import Path

    from support.daemon import Daemon

TRANSPORTS = ("tcp", "unix", "ws")
STEP = re.compile(r"([A-Z]) ?(>>|>|<~|<&|<\?|<\||<|connect|closed|close)(?: (.*))?")
PLACEHOLDER = re.compile(r"\$(any|ok|text|r\d|i\d)")
PATTERNS = {"any": ".+", "ok": r"(?:true|\{\})", "text": r'"(?:[^"\\]|\\.)*"', "i": "[0-9a-f]{8}"}


@dataclass(frozen=True)
class Step:
    line: int
    peer: str
    action: str
    text: str


@dataclass
class Section:
    title: str
    options: list[str] = field(default_factory=list)
    users: str | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports that `connect *` stands for; one run each."""
        wild = any(step.action == "connect" and step.text == "*" for step in self.steps)
        return TRANSPORTS if wild else ("",)


def read(file: Path) -> list[Section]:
    """The sections of a transcript file."""
    sections: list[Section] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("== "):
            sections.append(Section(line[3:].strip()))
        elif line.startswith("@users "):
            sections[-1].users = line[7:]
        elif line.startswith("@ "):
            sections[-1].options += line[2:].split()
        elif step := STEP.fullmatch(line.rstrip()):
            sections[-1].steps.append(Step(number, step[1], step[2], step[3] or ""))
        else:
            raise ValueError(f"{file.name}:{number}: {line}")
    return sections


class Player:
    """Plays one section against a daemon."""

    def __init__(self, daemon: Daemon, transport: str = "") -> None:
        self.daemon = daemon
        self.transport = transport
        self.wires: dict[str, Wire] = {}
        self._unproved: set[str] = set()
        self._remembered: dict[str, str] = {}

    def play(self, section: Section) -> None:
        try:
            for step in section.steps:
                try:
                    self._play(step)
                except (AssertionError, Closed, TimeoutError) as problem:
                    what = str(problem) or type(problem).__name__
                    raise AssertionError(f"line {step.line}: {step.peer}{step.action} {step.text}\n{what}") from None
            for peer in self.wires:
                self._expect_nothing(peer)
        finally:
            for wire in self.wires.values():
                wire.close()

    def _play(self, step: Step) -> None:
        peer, text = step.peer, step.text
        match step.action:
            case "connect":
                self.wires[peer] = self.daemon.connect(self.transport if text == "*" else text)
            case ">":
                self._prove(*(self._unproved - {peer}))
                self.wires[peer].send_text(self._filled(text))
                self._unproved.add(peer)
            case ">>":
                self._prove(*self._unproved)
                self.wires[peer].send_raw(bytes.fromhex(text))
            case "<":
                self._expect(self.wires[peer].receive_text(), self.wires[peer].spelt(text))
            case "<~":
                received = self.wires[peer].receive_text()
                assert _loads(received) == _loads(self._filled(text)), f"received {received}"
            case "<&":
                self._expect_among(peer, text)
            case "<?":
                self._prove(*self._unproved)
                inbox = self.wires[peer].inbox
                if inbox and self._matches(inbox[0], text):
                    inbox.popleft()
            case "<|":
                self._expect_nothing(peer)
            case "close":
                self._prove(*self._unproved)
                self.wires.pop(peer).close()
            case "closed":
                self._unproved.discard(peer)
                frames = self.wires.pop(peer).await_closed()
                assert not frames, f"received {frames}"

    def _prove(self, *peers: str) -> None:
        """Wait until all that these peers sent has been handled."""
        for peer in peers:
            self.wires[peer].barrier()
            self._unproved.discard(peer)

    def _expect(self, received: str, text: str) -> None:
        assert self._matches(received, text), f"received {received}"

    def _expect_among(self, peer: str, text: str) -> None:
        self._prove(*self._unproved, peer)
        inbox = self.wires[peer].inbox
        for position, received in enumerate(inbox):
            if self._matches(received, text):
                del inbox[position]
                return
        raise AssertionError(f"received {list(inbox)}")

    def _expect_nothing(self, peer: str) -> None:
        self._prove(*self._unproved)
        self._prove(peer)
        inbox = self.wires[peer].inbox
        assert not inbox, f"more came to {peer}: {list(inbox)}"

    def _matches(self, received: str, text: str) -> bool:
        for alternative in text.split(" || "):
            if found := re.fullmatch(self._pattern(alternative), received):
                self._remembered.update(found.groupdict())
                return True
        return False

    def _pattern(self, text: str) -> str:
        pattern, end, named = "", 0, set()
        for found in PLACEHOLDER.finditer(text):
            pattern += re.escape(text[end : found.start()])
            end, name = found.end(), found[1]
            if name in self._remembered:
                pattern += re.escape(self._remembered[name])
            elif name in named:
                pattern += f"(?P={name})"
            elif name in PATTERNS:
                pattern += PATTERNS[name]
            else:
                pattern += f"(?P<{name}>{PATTERNS['i' if name[0] == 'i' else 'text']})"
                named.add(name)
        return pattern + re.escape(text[end:])

    def _filled(self, text: str) -> str:
        return PLACEHOLDER.sub(lambda found: self._remembered[found[1]], text)


def _loads(text: str) -> Any:
    """JSON with numbers as they are written, so that 1 is not 1.0."""
    return json.loads(text, parse_int=lambda digits: ("int", digits), parse_float=lambda digits: ("float", digits))
