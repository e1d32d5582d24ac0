"""Bars for the speed and size of the daemon, and the check of a set of results against them.

Every bar is a row: the bar, the measured figure, ok or MISSED. A bar without a counterpart, or
without runs of its cases, says so; if its own runs failed, a bar is missed. Unless a bar says otherwise it
compares messages per second of daemon CPU, medians of the rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from compare import CASES, GROUPS, Result, failures, large_us, markdown, median

OURS = "jetd"
OURS_BINARY = "jetd-binary"
OURS_JOURNAL = "jetd-journal"
FORWARDERS = ("null-each", "null-batch")
NODE_JET_LEAST = {"set-w1": 1.2, "call-w1": 1.2, "latency-1": 1.2, "adds": 1.5, "connect": 1.5}
NODE_JET_ELSE = 3.0
STATE_BYTES_MAX = 1.5 * 1024
CONN_KB_MAX = 30.0
LARGE_MOST = 1.3
CROWD_P99_MS_MAX = 100.0
CROWD_RATE = 10_000

OK, MISSED, UNKNOWN = "ok", "MISSED", "not measured"


@dataclass(frozen=True)
class Verdict:
    """One row of the table."""

    bar: str
    measured: str
    verdict: str


Bar = Callable[[list[Result]], Verdict]


def unmeasured(results: list[Result], bar: str, *cases: str, daemon: str = OURS) -> Verdict:
    whys = [why for case in cases for why in failures(results, daemon, case)]
    return Verdict(bar, whys[0], MISSED) if whys else Verdict(bar, "-", UNKNOWN)


def times(case: str, other: str, least: float) -> Bar:
    """At least so many times another daemon, in the same case."""
    bar = f"{case}: at least {least} x {other}"

    def check(results: list[Result]) -> Verdict:
        mine, theirs = (median(results, name, case, "per_cpu_s") for name in (OURS, other))
        if not mine or not theirs:
            return unmeasured(results, bar, case)
        measured = f"{mine / theirs:.2f} x"
        limit = max(median(results, null, case, "per_cpu_s") or 0.0 for null in FORWARDERS)
        if 0 < limit < least * theirs:
            measured += f" (a bare forwarder: {limit / theirs:.2f} x)"
        return Verdict(bar, measured, OK if mine >= least * theirs else MISSED)

    return check


def within(case: str, base: str, share: float) -> Bar:
    """At most so much below another case of ours."""
    bar = f"{case}: at least {share} of {base}"

    def check(results: list[Result]) -> Verdict:
        mine, theirs = (median(results, OURS, name, "per_cpu_s") for name in (case, base))
        if not mine or not theirs:
            return unmeasured(results, bar, case, base)
        return Verdict(bar, f"{mine / theirs:.2f}", OK if mine >= share * theirs else MISSED)

    return check


def binary_times(case: str, least: float) -> Bar:
    """Least ratio of the rate between binary peers to that between JSON peers."""
    bar = f"{case}, binary: at least {least} x JSON"

    def check(results: list[Result]) -> Verdict:
        mine, theirs = (median(results, name, case, "per_cpu_s") for name in (OURS_BINARY, OURS))
        if not mine or not theirs:
            return unmeasured(results, bar, case, daemon=OURS_BINARY)
        return Verdict(bar, f"{mine / theirs:.2f} x", OK if mine >= least * theirs else MISSED)

    return check


def journal_keeps(case: str, share: float) -> Bar:
    """Least ratio of the rate with a journal to that without."""
    bar = f"{case}, with a journal: at least {share} of without"

    def check(results: list[Result]) -> Verdict:
        mine, theirs = (median(results, name, case, "per_cpu_s") for name in (OURS_JOURNAL, OURS))
        if not mine or not theirs:
            return unmeasured(results, bar, case, daemon=OURS_JOURNAL)
        return Verdict(bar, f"{mine / theirs:.2f}", OK if mine >= share * theirs else MISSED)

    return check


def large_cheap(results: list[Result]) -> Verdict:
    """Each further fetcher of a large value costs little more than passing bytes on does, the cheaper way."""
    bar = f"20 KB, binary: at most {LARGE_MOST} x the better byte forwarder for a further fetcher"
    mine = large_us(results, OURS_BINARY)
    forwarders = {name: cost for name in FORWARDERS if (cost := large_us(results, name))}
    if mine is None or not forwarders:
        return unmeasured(results, bar, "large-10", "large-50", daemon=OURS_BINARY)
    ratio = mine / min(forwarders.values())
    told = ", ".join(f"{name} {cost:.1f}" for name, cost in forwarders.items())
    return Verdict(bar, f"{ratio:.2f} x ({mine:.1f} us; {told})", OK if ratio <= LARGE_MOST else MISSED)


def at_most(case: str, key: str, most: float, unit: str) -> Bar:
    """No more memory than this."""
    bar = f"{case}: at most {most:.0f} {unit}"

    def check(results: list[Result]) -> Verdict:
        mine = median(results, OURS, case, key)
        if mine is None:
            return unmeasured(results, bar, case)
        return Verdict(bar, f"{mine:.1f} {unit}", OK if mine <= most else MISSED)

    return check


def responsive(results: list[Result]) -> Verdict:
    """Info and set are answered in time while the changes flow at the full rate."""
    bar = (
        "crowd: 1000 connections, 100,000 states, 1000 fetches: info and set answered with"
        f" p99 below {CROWD_P99_MS_MAX:.0f} ms at {CROWD_RATE:,} changes/s"
    )
    keys = ("info_p50_us", "info_p99_us", "set_p50_us", "set_p99_us", "changes_per_s")
    figures = [median(results, OURS, "crowd", key) for key in keys]
    if None in figures:
        return unmeasured(results, bar, "crowd")
    info50, info99, set50, set99, rate = (figure or 0.0 for figure in figures)
    measured = (
        f"info p50 {info50 / 1e3:.1f} ms, p99 {info99 / 1e3:.1f} ms;"
        f" set p50 {set50 / 1e3:.1f} ms, p99 {set99 / 1e3:.1f} ms; {rate:,.0f} changes/s"
    )
    kept = max(info99, set99) < CROWD_P99_MS_MAX * 1e3 and rate > 0.95 * CROWD_RATE
    return Verdict(bar, measured, OK if kept else MISSED)


def node_jet_bars() -> list[Bar]:
    own_bar = ("adds-rules-0", "adds-rules-1000", "large-10", "large-50")  # there for a bar that compares the two
    cases = [name for name, case in CASES.items() if case.kind == "rate" and name not in own_bar]
    return [times(name, "node-jet", NODE_JET_LEAST.get(name, NODE_JET_ELSE)) for name in cases]


BARS: list[Bar] = [
    *node_jet_bars(),
    times("fanout-100", "redis", 0.4),
    times("same-100", "redis", 1.5),
    times("same-100", "nats", 1.5),
    within("rules-1000", "rules-10", 0.8),
    within("adds-rules-1000", "adds-rules-0", 0.7),
    *(binary_times(case, 1.0) for case in GROUPS["binary"] if not case.startswith("large")),
    large_cheap,
    *(journal_keeps(case, 0.75) for case in GROUPS["journal"]),
    at_most("memory-states", "bytes_per_state", STATE_BYTES_MAX, "bytes per state"),
    at_most("memory-conns", "kb_per_conn", CONN_KB_MAX, "KB per idle connection"),
    responsive,
]


def verdicts(results: list[Result]) -> list[Verdict]:
    return [bar(results) for bar in BARS]


def bars_table(rows: list[Verdict]) -> str:
    missed = sum(row.verdict == MISSED for row in rows)
    unknown = sum(row.verdict == UNKNOWN for row in rows)
    body = markdown(["bar", "measured", "verdict"], [[row.bar, row.measured, row.verdict] for row in rows])
    total = f"{len(rows) - missed - unknown} of {len(rows)} kept, {missed} missed, {unknown} not measured."
    return f"\n### Bars\n\n{body}\n{total}\n"
