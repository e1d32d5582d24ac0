"""The settings: where they come from, which is stronger, and what is said of one that cannot be."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from jetbus.bus.limits import Limits
from jetbus.daemon.config import SETTINGS, Address, Config, ConfigError, Setting, load, parser, shown

BY_NAME = {row.name: row for row in SETTINGS}

SAMPLES: dict[str, tuple[str, Any, str, Any]] = {
    "tcp": ("localhost:1", Address("localhost", 1), "[::1]:0", Address("::1", 0)),
    "ws": ("*:2", Address("*", 2), "off", None),
    "unix": ("@name", "@name", "some/file", "some/file"),
    "binary": ("localhost:3", Address("localhost", 3), "off", None),
    "binary_unix": ("@name", "@name", "off", None),
    "users": ("u.json", Path("u.json"), "v.json", Path("v.json")),
    "journal": ("a/b", Path("a/b"), "c", Path("c")),
    "journal_fsync": ("always", "always", "never", "never"),
    "journal_flush_ms": ("10", 10, "20", 20),
    "journal_rules": ("a/** => sample 1s", (("a/**", "sample 1s"),), "b=>skip;", (("b", "skip"),)),
    "journal_values": ("changed", "changed", "every", "every"),
    "journal_groups": ("staff, guests", ("staff", "guests"), "staff", ("staff",)),
    "journal_segment_mb": ("1", 1, "2", 2),
    "journal_segment_s": ("60", 60.0, "1.5", 1.5),
    "journal_keep_mb": ("100", 100, "0", 0),
    "journal_keep_s": ("86400", 86400.0, "0", 0.0),
    "journal_buffer_mb": ("8", 8, "16", 16),
    "journal_cursors_max": ("1", 1, "8", 8),
    "replay_events_max": ("10", 10, "20", 20),
    "past_bytes_max": ("10", 10, "20", 20),
    "journal_bus": ("plant", "plant", "site b", "site b"),
    "tls_cert": ("c.pem", Path("c.pem"), "d.pem", Path("d.pem")),
    "tls_key": ("k.pem", Path("k.pem"), "l.pem", Path("l.pem")),
    "tree": ("flat", "flat", "strict", "strict"),
    "separator": ("/.", "/.", ".", "."),
    "timeout_s": ("2.5", 2.5, "0", 0.0),
    "ws_ping_s": ("1", 1.0, "0.25", 0.25),
    "ws_origins": ("https://a, https://b", ("https://a", "https://b"), "null", ("null",)),
    "ws_deflate": ("on", "on", "off", "off"),
    "ws_deflate_max": ("7", 7, "8", 8),
    "ws_login_header": ("X-Remote-User", "X-Remote-User", "X-User", "X-User"),
    "ws_login_proxies": ("::1, 10.0.0.0/8", ("::1", "10.0.0.0/8"), "127.0.0.1", ("127.0.0.1",)),
    "ws_login_cookie": ("jet", "jet", "session", "session"),
    "ws_login_key": ("k", Path("k"), "/etc/jet/key", Path("/etc/jet/key")),
    "radar": ("localhost:0", Address("localhost", 0), "*:8080", Address("*", 8080)),
    "alarms": ("a.toml", Path("a.toml"), "b.toml", Path("b.toml")),
    "announce": ("plant", "plant", "site b", "site b"),
    "log_level": ("debug", "debug", "error", "error"),
    "outbox_soft_bytes": ("1000", 1000, "2000", 2000),
    "outbox_hard_bytes": ("200000000", 200000000, "300000000", 300000000),
    "message_bytes_max": ("7", 7, "8", 8),
    "connections_max": ("7", 7, "8", 8),
    "depth_max": ("7", 7, "8", 8),
    "batch_max": ("7", 7, "8", 8),
    "batch_bytes_max": ("7", 7, "8", 8),
    "number_chars_max": ("7", 7, "8", 8),
    "path_chars_max": ("7", 7, "8", 8),
    "path_depth_max": ("7", 7, "8", 8),
    "answer_bytes_max": ("7", 7, "8", 8),
    "search_bytes_max": ("7", 7, "8", 8),
    "elements_max": ("7", 7, "8", 8),
    "members_max": ("7", 7, "8", 8),
    "schema_bytes_max": ("7", 7, "8", 8),
    "quality_bytes_max": ("7", 7, "8", 8),
    "past_s_max": ("7", 7, "8", 8),
    "future_s_max": ("7", 7, "8", 8),
    "past_values_max": ("7", 7, "8", 8),
    "check_bytes_max": ("7", 7, "8", 8),
    "login_chars_max": ("7", 7, "8", 8),
    "fetches_max": ("7", 7, "8", 8),
    "fetches_address_max": ("7", 7, "8", 8),
    "fetches_total_max": ("7", 7, "8", 8),
    "kept_bytes_max": ("7", 7, "8", 8),
    "kept_address_bytes_max": ("7", 7, "8", 8),
    "kept_peer_bytes_max": ("7", 7, "8", 8),
    "reservations_max": ("7", 7, "8", 8),
    "tls_client_ca": ("/etc/jet/ca.pem", Path("/etc/jet/ca.pem"), "ca.pem", Path("ca.pem")),
    "logins_waiting_max": ("7", 7, "8", 8),
    "logins_known_max": ("7", 7, "8", 8),
    "rule_list_max": ("7", 7, "8", 8),
    "rule_tests_max": ("7", 7, "8", 8),
    "rule_tests_address_max": ("7", 7, "8", 8),
    "rule_tests_total_max": ("7", 7, "8", 8),
    "pattern_steps_max": ("7", 7, "8", 8),
    "rule_work_max": ("7", 7, "8", 8),
    "routes_max": ("7", 7, "8", 8),
    "turn_us_max": ("7", 7, "8", 8),
    "unread_bytes_max": ("7", 7, "8", 8),
    "inbound_bytes_max": ("7", 7, "8", 8),
    "inbound_address_bytes_max": ("7", 7, "8", 8),
    "outbox_total_bytes": ("7", 7, "8", 8),
    "handshake_s": ("2.5", 2.5, "1", 1.0),
    "linger_ms_max": ("7", 7, "8", 8),
}
"""Two texts of each setting and what they mean."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jetd.toml"


def _write(file: Path, **values: Any) -> list[str]:
    """Write the file; the flags that name it."""
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return ["--config", str(file)]


def _refused(arguments: list[str], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load(arguments, environment or {})
    return str(refused.value)


# Where they come from.


def test_every_setting_has_samples() -> None:
    """The samples of this test know every setting."""
    assert SAMPLES.keys() == BY_NAME.keys()


def test_radar_alone_has_an_address() -> None:
    """The flag --radar needs no value."""
    assert load(["--radar"], {}).radar == Address("localhost", 11128)
    assert load(["--radar", "--tcp", "off"], {}).radar == Address("localhost", 11128)
    assert load([], {}).radar is None


def test_without_anything_the_defaults_count() -> None:
    """Nothing given is the default of everything, and that listens on loopback only."""
    config = load([], {})
    assert config == Config()
    assert config.tcp == Address("localhost", 11122)
    assert config.ws == Address("localhost", 11123)
    assert config.unix == "@/var/run/jet.socket"
    assert config.tree == "auto"


@pytest.mark.parametrize("name", SAMPLES)
def test_order_of_strength(file: Path, name: str) -> None:
    """A flag is stronger than an environment variable, that is stronger than the file."""
    row = BY_NAME[name]
    one, one_means, other, other_means = SAMPLES[name]
    in_file = _write(file, **{name: one})
    assert getattr(load(in_file, {}), name) == one_means
    assert getattr(load(in_file, {row.variable: other}), name) == other_means
    assert getattr(load([*in_file, row.flag, one], {row.variable: other}), name) == one_means
    assert getattr(load([row.flag, other], {row.variable: one}), name) == other_means
    assert getattr(load([*in_file, row.flag, other], {}), name) == other_means


def test_settings_come_from_several_places(file: Path) -> None:
    """A setting that is missing in one place is taken from the next one."""
    config = load([*_write(file, tcp=":1", ws=":2", tree="flat"), "--ws", ":4"], {"JET_TCP": ":3"})
    assert (config.tcp, config.ws, config.tree) == (Address("localhost", 3), Address("localhost", 4), "flat")


def test_file_named_by_the_environment(file: Path) -> None:
    """The file can be named by a variable; one that a flag names is stronger."""
    other = file.with_name("other.toml")
    _write(other, timeout_s=2)
    _write(file, timeout_s=1)
    assert load([], {"JET_CONFIG": str(file)}).timeout_s == 1.0
    assert load(["--config", str(other)], {"JET_CONFIG": str(file)}).timeout_s == 2.0


def test_empty_variables_say_nothing() -> None:
    """An empty environment variable is as good as none."""
    assert load([], {"JET_TCP": "", "JET_CONFIG": ""}) == Config()


def test_numbers_and_lists_in_the_file(file: Path) -> None:
    """In the file numbers may be numbers and lists lists."""
    config = load(_write(file, timeout_s=2.5, depth_max=7, ws_origins=["https://a", "https://b"]), {})
    assert (config.timeout_s, config.depth_max, config.ws_origins) == (2.5, 7, ("https://a", "https://b"))


ADDRESSES: dict[str, Address | None] = {
    "localhost:0": Address("localhost", 0),
    "127.0.0.1:11122": Address("127.0.0.1", 11122),
    ":65535": Address("localhost", 65535),
    "[::1]:80": Address("::1", 80),
    "*:80": Address("*", 80),
    "machine.example:80": Address("machine.example", 80),
    "off": None,
}


@pytest.mark.parametrize(("text", "address"), ADDRESSES.items())
def test_addresses(text: str, address: Address | None) -> None:
    """An address is a host and a port; without a host it is this machine's loopback."""
    assert load(["--tcp", text], {}).tcp == address


@pytest.mark.parametrize("text", ["localhost:0", "[::1]:80", "off", "*:1"])
def test_addresses_as_they_are_shown(text: str) -> None:
    """An address is shown as one would write it."""
    assert shown(load(["--tcp", text], {}).tcp) == text


# What cannot be.

_COUNTS = ["0", "-1", "1.5", "many", "1e3", " "]
_SECONDS = ["-1", "soon", "nan", "inf", "-0.001"]
BAD: dict[str, tuple[list[str], str]] = {
    "tcp": (["", "localhost", "localhost:", "localhost:http", "localhost:65536", "localhost:-1"], "HOST:PORT"),
    "ws": (["", "11123", "ws://localhost:11123/", "OFF"], "HOST:PORT"),
    "unix": (["", "@", "@@"], "@NAME"),
    "binary": (["", "localhost", "11124"], "HOST:PORT"),
    "radar": (["", "localhost", "11128"], "HOST:PORT"),
    "announce": (["a.b", "x" * 64], "at most 63 bytes without dots"),
    "binary_unix": (["", "@"], "@NAME"),
    "tree": (["", "Strict", "loose"], "auto, strict, flat"),
    "separator": (["", "//", "./", ":"], "/, ., /."),
    "log_level": (["", "verbose", "INFO"], "debug, info, warning, error"),
    "timeout_s": (_SECONDS, "seconds"),
    "journal_fsync": (["", "sometimes"], "always, interval, never"),
    "journal_flush_ms": (_COUNTS, "at least 1"),
    "journal_rules": (["a", "a =>", "=> skip"], "RULE => DENSITY"),
    "journal_values": (["", "new"], "every, changed"),
    "journal_segment_mb": (_COUNTS, "at least 1"),
    "journal_segment_s": (_SECONDS, "seconds"),
    "journal_keep_mb": (["-1", "all"], "at least 0"),
    "journal_keep_s": (_SECONDS, "seconds"),
    "journal_buffer_mb": (_COUNTS, "at least 1"),
    "ws_ping_s": (_SECONDS, "seconds"),
    "ws_deflate": (["", "yes", "ON"], "off, on"),
    "ws_login_proxies": (["localhost", "10.0.0.0/33", "::1, proxy"], "addresses or networks"),
    "handshake_s": (_SECONDS, "seconds"),
    **{name: (_COUNTS, "at least 1") for name in BY_NAME if name.endswith(("_max", "_bytes"))},
}
ANYTHING_GOES = {
    "alarms",
    "users",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "ws_origins",
    "ws_login_header",
    "ws_login_cookie",
    "ws_login_key",
    "journal",
    "journal_groups",
    "journal_bus",
}
"""Names of files, which are looked at when they are read, and lists of texts."""
BAD_CASES = [
    pytest.param(name, text, would_do, id=f"{name} {text!r}")
    for name, (texts, would_do) in BAD.items()
    for text in texts
]


def test_every_setting_has_bad_values() -> None:
    """Every setting that can be wrong is tried with wrong values."""
    assert BAD.keys() | ANYTHING_GOES == BY_NAME.keys()


@pytest.mark.parametrize(("name", "text", "would_do"), BAD_CASES)
def test_bad_values(file: Path, name: str, text: str, would_do: str) -> None:
    """A value that cannot be is refused, naming its source, the setting, the value and what would do."""
    row = BY_NAME[name]
    sources = [
        (_refused([f"{row.flag}={text}"]), row.flag),
        (_refused(_write(file, **{name: text})), str(file)),
    ]
    if text:
        sources.append((_refused([], {row.variable: text}), row.variable))
    for received, source in sources:
        assert received.startswith(f"{source}: {name} cannot be {text!r}: ")
        assert would_do in received
        assert "\n" not in received


def test_ipv6_without_brackets() -> None:
    """An IPv6 address without brackets is refused, saying where they belong."""
    assert "[::1]:11122" in _refused(["--tcp", "::1:80"])


WRONG_TYPES: dict[str, tuple[str, str]] = {
    "a truth as a count": ("depth_max = true", "at least 1"),
    "a fraction as a count": ("depth_max = 1.5", "at least 1"),
    "a number as an address": ("tcp = 11122", "HOST:PORT"),
    "a table": ("[tcp]\nport = 1", "HOST:PORT"),
    "a list as a word": ('tree = ["strict", "flat"]', "auto, strict, flat"),
    "not a number": ("timeout_s = nan", "seconds"),
}


@pytest.mark.parametrize(("text", "would_do"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_types_in_the_file(file: Path, text: str, would_do: str) -> None:
    """A value of the wrong type in the file is refused like any other."""
    file.write_text(text)
    received = _refused(["--config", str(file)])
    assert would_do in received
    assert "cannot be" in received


def test_highest_depth() -> None:
    """The depth cannot be set higher than the interpreter can bear, and the error says how high."""
    most = Limits.__dataclass_fields__["depth_max"].metadata["most"]
    assert load(["--depth-max", str(most)], {}).depth_max == most
    assert str(most) in _refused(["--depth-max", str(most + 1)])


def test_soft_above_hard() -> None:
    """A soft limit above the hard one makes no sense, and that is said."""
    received = _refused(["--outbox-soft-bytes", "10", "--outbox-hard-bytes", "9"])
    assert "outbox_soft_bytes" in received
    assert "outbox_hard_bytes" in received
    assert load(["--outbox-soft-bytes", "9", "--outbox-hard-bytes", "9"], {}).outbox_hard_bytes == 9


SUGGESTED = {"time_out_s": "timeout_s", "tcpp": "tcp", "elements-max": "elements_max", "user": "users"}


@pytest.mark.parametrize(("wrong", "right"), SUGGESTED.items())
def test_unknown_settings_in_the_file(file: Path, wrong: str, right: str) -> None:
    """A setting that does not exist is refused, and the nearest one that does is named."""
    received = _refused(_write(file, **{wrong: "1"}))
    assert repr(wrong) in received
    assert f"did you mean {right}?" in received


def test_quite_unknown_settings(file: Path) -> None:
    """If no known setting is similar, the error says where all settings are listed."""
    assert "--help" in _refused(_write(file, zzzzzzz=1))


def test_unknown_variables(caplog: pytest.LogCaptureFixture) -> None:
    """An environment variable that looks like a setting and is none is warned of, and other programs' are not."""
    with caplog.at_level(logging.WARNING):
        load([], {"JET_TPC": "x", "JETTY": "x", "JET_URL": "x", "JET_CONFIG": "", "PATH": "x"})
    assert len(caplog.records) == 1
    assert "JET_TPC" in caplog.text
    assert "did you mean JET_TCP?" in caplog.text


FILES: dict[str, tuple[bytes, str]] = {
    "no toml": (b"tcp = ", "not TOML"),
    "no text": (b"\xff\xfe", "not TOML"),
    "a setting twice": (b"depth_max = 1\ndepth_max = 2\n", "not TOML"),
}


@pytest.mark.parametrize(("content", "received"), FILES.values(), ids=FILES)
def test_broken_files(file: Path, content: bytes, received: str) -> None:
    """A file that cannot be read as TOML is refused by name."""
    file.write_bytes(content)
    refused = _refused(["--config", str(file)])
    assert str(file) in refused
    assert received in refused


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is refused by name, and so is a folder."""
    assert str(tmp_path / "none.toml") in _refused(["--config", str(tmp_path / "none.toml")])
    assert str(tmp_path) in _refused([], {"JET_CONFIG": str(tmp_path)})


# Help.


def _words(text: str) -> str:
    """The text with its line breaks and the hyphens at them taken out."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_every_setting_has_help(row: Setting) -> None:
    """Every setting says what it is, in words that are no name, and help shows flag, words and default."""
    assert len(row.help) >= 5
    assert row.help != row.name
    default = "none" if row.default in (None, ()) else shown(row.default)
    received = _words(parser().format_help())
    metavar = row.metavar if row.alone is None else f"[{row.metavar}]"
    assert f"{row.flag} {metavar} " in received
    assert _words(f"{row.help} (default {default})").replace("- ", "-") in received.replace("- ", "-")


def test_help_tells_the_other_ways() -> None:
    """Help tells of variables, of the file, of their order and of the signals."""
    received = parser().format_help()
    for word in ("--config", "JET_TCP", "TOML", "stronger", "SIGTERM", "SIGHUP", "--version"):
        assert word in received


def test_names_have_units() -> None:
    """A number's name ends in its unit or says that it is a highest count."""
    numbers = [row.name for row in SETTINGS if type(row.default) in (int, float)]
    assert [name for name in numbers if not name.endswith(("_s", "_ms", "_bytes", "_mb", "_max"))] == []


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--tc", "off"], ["extra"], ["--tcp"]])
def test_unknown_flags(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown, shortened or unfinished flag ends the command with code 2 and a hint."""
    with pytest.raises(SystemExit) as ended:
        load(arguments, {})
    assert ended.value.code == 2
    assert "usage: jetd" in capsys.readouterr().err
