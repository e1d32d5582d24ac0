"""Words that people look for: those of other systems, and of the tools around a bus.

Each word has an answer of a sentence or two, a command to try where there is one, and the page that says more.
``jet help WORD`` prints them, and ``docs/words.md`` is made from this table, so that a search on the site finds them.
"""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """Answer to one word."""

    text: str
    page: str
    """Page and heading below docs/, such as ``peers.md#fetch``."""
    command: str = ""
    """Command to try."""
    others: tuple[str, ...] = ()
    """Other words with the same answer."""


WORDS: dict[str, Word] = {
    "subscribe": Word(
        "A subscription is called a fetch: a rule, to which the daemon sends all states that match, then every change.",
        "peers.md#fetch",
        "jet watch 'plant/**'",
        ("subscription", "subscriber", "listen", "fetch"),
    ),
    "publish": Word(
        "Add a state, then change it: the daemon sends each change to all who fetch it. Only its owner can change it.",
        "peers.md#the-first-owner",
        "jet add plant/speed 1200",
        ("publisher", "send", "emit"),
    ),
    "topic": Word(
        "A path, such as plant/pump/speed. Rules select paths with * and **, and can test values, too.",
        "rules.md",
        "jet tree",
        ("subject", "channel", "key", "node id", "tag"),
    ),
    "wildcard": Word(
        "* is any text without a slash, ** any text: MQTT's plant/+/speed is plant/*/speed, and plant/# is plant/**.",
        "rules.md#globs",
        "jet get 'plant/*/speed'",
        ("glob", "pattern", "#", "+", ">"),
    ),
    "retained": Word(
        "Every state is: a new fetch gets its present value first. It leaves the bus with its owner; the journal"
        " keeps what was.",
        "concepts.md#state",
        "jet get plant/speed",
        ("retain", "last value"),
    ),
    "QoS": Word(
        "There is no such setting. Messages arrive in order and once while the connection lasts; a set or call gets the"
        " answer of the owner; a slow reader gets the newest value, or every change with the policy `every`.",
        "reliability.md#order",
        others=("quality of service", "at least once", "exactly once", "delivery", "acknowledge"),
    ),
    "last will": Word(
        "Not needed: the states of a peer leave the bus when its connection ends, and those who fetch them get a"
        " remove.",
        "reliability.md#loss-and-return",
        others=("will", "LWT", "offline", "disconnect"),
    ),
    "request": Word(
        "A set asks the owner of a state to change it, a call runs a method. Both wait for the answer of the owner.",
        "peers.md#methods",
        "jet call plant/pump/start",
        ("rpc", "reply", "response", "command"),
    ),
    "broker": Word("The daemon, jetd.", "daemon.md", "jetd", ("server", "hub")),
    "client": Word(
        "A peer. It may own states and fetch those of others, both at once.", "peers.md", others=("session",)
    ),
    "backup": Word(
        "Copy the folder of the journal, also while the daemon runs. Tables of a pipeline can be made again from it."
        " Users and settings are plain files.",
        "howto/backup.md",
        "jet journal export log --to events.parquet",
        ("restore", "archive", "export", "snapshot"),
    ),
    "time zone": Word(
        "Instants are stored in UTC. Tables on a terminal show local time; 06:45 and yesterday are local time; RFC 3339"
        " text without an offset is UTC.",
        "history-reference.md#instants",
        "jet history plant/speed --since 06:45",
        ("timezone", "UTC", "local time", "timestamp", "clock"),
    ),
    "Jupyter": Word(
        "Peers, journals and tables work in a notebook; results are Arrow tables, for pandas, polars and charts.",
        "howto/notebook.md",
        others=("notebook", "ipynb", "JupyterLab", "chart"),
    ),
    "pandas": Word(
        'journal.history(path).to_pandas() is a data frame, journal.frame(paths, every="1s") one with a column for each'
        " path; polars and duckdb read the journal as well, without Spark.",
        "history.md#pandas-polars-duckdb",
        others=("polars", "duckdb", "dataframe", "data frame", "numpy", "parquet"),
    ),
    "resample": Word(
        "peer.frame(paths, since=, every='1s') returns several states side by side, as a frame of pandas.",
        "howto/resample.md",
        "jet history plant/speed --since -1h --every 1m",
        ("join", "interpolate", "align", "downsample"),
    ),
    "Excel": Word(
        "Histories and events can be written as CSV, which spreadsheets open.",
        "connect.md#spreadsheets",
        "jet history plant/speed --since -1h --output csv",
        ("csv", "spreadsheet", "LibreOffice"),
    ),
    "Grafana": Word(
        "Let Prometheus read /metrics of the daemon for its health. For values, query the Delta Lake tables of a"
        " pipeline, or read CSV over HTTP. Radar draws charts without it.",
        "connect.md#grafana",
        "jet radar",
        ("Prometheus", "dashboard", "metrics", "monitoring", "InfluxDB"),
    ),
    "MQTT": Word(
        "A program of 20 lines copies states to topics, and messages back as set requests.",
        "connect.md#mqtt",
        others=("mosquitto", "Home Assistant", "Node-RED"),
    ),
    "OPC UA": Word(
        "Write an owner: a program that reads the device with a library for its protocol and changes states.",
        "connect.md#devices",
        others=("OPC", "OPCUA", "Modbus", "PLC", "serial"),
    ),
    "HTTP": Word(
        "Radar serves the tree, events and the past over HTTP, for curl and programs.",
        "connect.md#http",
        "jet radar --no-open",
        ("REST", "curl", "OpenAPI"),
    ),
    "alarm": Word(
        "A condition on states, in a TOML file. It is raised as values come, and acknowledged; a backtest shows when it"
        " would have been raised in the past.",
        "alarms.md",
        "jet alarms run alarms.toml",
        ("alert", "threshold"),
    ),
    "notification": Word(
        "Each event of a fetch is one. To be notified of alarms, fetch their states in a program that sends a mail or a"
        " message.",
        "howto/alarm.md#be-notified",
        others=("email", "mail", "webhook", "SMS"),
    ),
    "unit": Word(
        "The owner of a state gives it a unit, a range and more: add_state(path, value, unit='rpm', maximum=3000).",
        "describe.md",
        "jet describe plant/speed",
        ("description", "metadata", "range"),
    ),
    "schema": Word(
        "add_state(path, value, type=...) accepts values of that type only; a description becomes a JSON schema that"
        " clients can read.",
        "describe.md#refuse-values-that-do-not-fit",
        "jet describe plant/speed",
        ("type", "validation", "dataclass"),
    ),
    "callback": Word(
        "peer.fetch(rule, callback) calls a function with each event, and on_result= calls one with the result of a"
        " request.",
        "peers-reference.md#callbacks-and-futures",
        others=("future", "handler"),
    ),
    "asyncio": Word(
        "PeerAsync has the methods of Peer, to be awaited.",
        "peers.md#with-asyncio",
        others=("async", "await", "event loop", "coroutine"),
    ),
    "thread": Word(
        "A Peer may be used from any thread; a PeerAsync only from the thread of its event loop.",
        "peers-reference.md#threads-and-asyncio",
        others=("thread-safe", "multithreading"),
    ),
    "timeout": Word(
        "timeout_s= limits how long the owner may take to answer a set or call; TimedOut is raised then.",
        "peers-reference.md#threads-and-asyncio",
        "jet set plant/speed 1200 --timeout 2s",
        ("deadline",),
    ),
    "failover": Word(
        "The daemon is a single process. When it is back, peers connect again by themselves, owners add their states"
        " and fetches go on.",
        "reliability.md#loss-and-return",
        others=("high availability", "redundancy", "reconnect"),
    ),
    "upgrade": Word(
        "Install the new version and restart the daemon first; peers come back by themselves.",
        "howto/upgrade.md",
        others=("update", "new version", "migrate"),
    ),
    "Docker": Word(
        "The sources have a Dockerfile: a daemon that keeps its journal on a volume.",
        "howto/service.md#in-a-container",
        others=("container", "Kubernetes", "podman", "image", "compose"),
    ),
    "Windows": Word(
        "The daemon is made for Linux: use WSL or a container on Windows and macOS. Programs with peers connect from"
        " there over TCP or WebSocket.",
        "faq.md#which-systems",
        others=("macOS", "Mac", "WSL", "platform", "operating system"),
    ),
    "systemd": Word(
        "The sources have a unit file for jetd.", "howto/service.md#with-systemd", others=("service", "boot")
    ),
    "password": Word(
        "A daemon has no users unless it is given a users file; `jet user init` makes one.",
        "howto/secure.md",
        "jet user init ann --users users.json",
        ("login", "user", "TLS", "certificate", "security", "encryption", "ACL"),
    ),
    "browser": Word(
        "jet radar opens the bus in a browser. Your own pages connect by WebSocket; foreign origins need ws_origins.",
        "radar.md",
        "jet radar",
        ("websocket", "JavaScript", "CORS", "origin"),
    ),
    "storage": Word(
        "The daemon keeps present values in memory. With --journal it records every event in Arrow files.",
        "history.md",
        "jetd --journal log",
        ("database", "persistence", "history", "log", "record"),
    ),
}
"""Words by name; ``find_word`` also knows their other names."""


def find_word(name: str) -> tuple[str, Word] | None:
    """Return the word with this name, in whatever case, and its answer; None if there is none.

    >>> find_word("qos")[0], find_word("subscriptions")[0]
    ('QoS', 'subscribe')
    """
    wanted = name.casefold()
    for word, answer in WORDS.items():
        names = [known.casefold() for known in (word, *answer.others)]
        # People look for plurals, which the table does not have.
        if wanted in names or wanted.removesuffix("s") in names:
            return word, answer
    return None


def list_names() -> list[str]:
    """Return all words and their other names."""
    return [name for word, answer in WORDS.items() for name in (word, *answer.others)]
