"""A real mail server, as small as one can be: it takes mails and keeps them."""

from __future__ import annotations

import queue
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage


class MailServer(socketserver.ThreadingTCPServer):
    """A mail server at a free port; ``mails`` has all that was sent to it."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Dialogue)
        self.mails: queue.SimpleQueue[EmailMessage] = queue.SimpleQueue()

    @property
    def address(self) -> str:
        """Host and port."""
        host, port = self.server_address[:2]
        return f"{host!s}:{port}"


class _Dialogue(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 test")
        while line := self.rfile.readline():
            word = line.decode().split()[0].upper()
            if word == "DATA":
                self._say("354 go on")
                self._take_mail()
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _take_mail(self) -> None:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b"..") else line)
        mail = message_from_bytes(b"".join(lines), policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.server.mails.put(mail)
        self._say("250 taken")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """Run a mail server."""
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
