"""The shell round the brain: listeners, connections, outboxes, users, settings and the daemon's states about itself.

    main              the command ``jetd``;  ``config``, its settings
    daemon            one bus, its listeners and connections;  ``tls``, ``announcement``, ``radar_process``
    connection        bytes from a socket to the bus;  ``deflate``, ``origins``, ``upgrade_logins`` of WebSocket
    inbound           bytes that wait to be handled;  ``turns``, the order in which connections are served
    outbox            frames for a peer, written once for all messages that arrived together
    users             users and their rights;  ``users_file`` on disk, ``credentials`` of processes and certificates
    logins            the queue of passwords to check
    journaling        the journal's writer;  ``journal_api``, questions about the past
    metrics           states under ``$jet/``, /health and /metrics;  ``admin``, methods for administrators

All input and output is here; the bus decides which peer is sent which message.
"""

from jetbus.daemon.config import Config
from jetbus.daemon.daemon import Daemon

__all__ = ["Config", "Daemon"]
