"""Elements of the far bus are on the near one, below the prefix."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus import Blob, PeerAsync
from jetbus.bridge import Bridge, Phase, Status
from jetbus.testing import RunningDaemon, running_daemon
from support.bridges import Seen, mounted, run, until

VALUES: dict[str, Any] = {
    "number": 7,
    "fraction": 0.5,
    "whole fraction": 1.0,
    "great": 2**80,
    "text": "grün ✓",
    "null": None,
    "false": False,
    "list": [1, [], {"a": None}],
    "object": {"x": {"y": 1}, "mime": "no bytes"},
    "bytes": Blob(b"\x00\xff", mime="image/x"),
    "deep/er/path with ü": 1,
}


def test_states_and_methods(far: RunningDaemon, near: RunningDaemon) -> None:
    """Every state and method is there, with its value and its read-only flag, and methods are methods."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            for name, value in VALUES.items():
                await owner.add_state(name, value)
            await owner.add_state("open", 1, on_set=lambda _value: None)
            await owner.add_method("run", lambda: None)
            async with Bridge(far.url, near.url, prefix="plant2/") as bridge:
                assert bridge.status == Status(Phase.MOUNTED, len(VALUES) + 2, 0)
                found = await mounted(client)
                assert found == VALUES | {"open": 1}
                assert {name: type(value) for name, value in found.items() if name != "open"} == {
                    name: type(value) for name, value in VALUES.items()
                }
                assert found["bytes"].mime == "image/x"
                seen = await Seen(client).ready()
                received = {event.path: event for event in seen.events}
                assert {path for path, event in received.items() if event.is_method} == {"plant2/run"}
                writable = {path for path, event in received.items() if not event.fetch_only}
                assert writable == {"plant2/open", "plant2/run"}
            await until(lambda: sum(event.kind == "remove" for event in seen.events) == len(VALUES) + 3)
            assert await client.get_all() == {}
            assert await owner.get_all(starts_with="$bridge") == {}

    run(case())


def test_changes_follow(far: RunningDaemon, near: RunningDaemon) -> None:
    """Every change of a state arrives, in order."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            state = await owner.add_state("count", 0)
            async with Bridge(far.url, near.url, prefix="plant2/"):
                fetch = client.fetch("plant2/count", policy="every")
                for number in range(1, 1001):
                    state.change(number)
                seen = [(await anext(fetch)).value for _ in range(1001)]
                assert seen == list(range(1001))
                for value in (None, Blob(b"abc"), {"a": 1}):
                    state.change(value)
                    assert (await anext(fetch)).value == value

    run(case())


def test_add_and_remove_follow(far: RunningDaemon, near: RunningDaemon) -> None:
    """New elements are mounted, removed ones taken off, and replaced ones replaced."""

    async def case() -> None:
        bridge = Bridge(far.url, near.url, prefix="plant2/")
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client, bridge:
            fetch = client.fetch("plant2/thing", policy="every")
            state = await owner.add_state("thing", 1, on_set=lambda _value: None)
            await state.remove()
            method = await owner.add_method("thing", lambda: "done")
            assert [(event.kind, event.is_method) for event in [await anext(fetch) for _ in range(3)]] == [
                ("add", False),
                ("remove", False),
                ("add", True),
            ]
            assert await client.call("plant2/thing") == "done"
            await method.remove()
            await owner.add_state("thing", 2)
            assert (await anext(fetch)).kind == "remove"
            event = await anext(fetch)
            assert (event.kind, event.value, event.fetch_only) == ("add", 2, True)

    run(case())


SCHEMES = ["jet", "ws", "unix", "jetb", "jetb+ws", "jetb+unix"]


def _url(daemon: RunningDaemon, scheme: str) -> str:
    urls = {"jet": daemon.url, "ws": daemon.ws_url, "unix": daemon.unix_url, "jetb": daemon.binary_url}
    urls |= {"jetb+ws": f"jetb+{daemon.ws_url}", "jetb+unix": daemon.binary_unix_url}
    return urls[scheme]


@pytest.mark.parametrize(("far_scheme", "near_scheme"), [(one, two) for one in SCHEMES for two in ("jet", "jetb")])
def test_every_transport(far_scheme: str, near_scheme: str, tmp_path: Path) -> None:
    """A bridge reaches both buses by any transport and protocol, and all passes through it, bytes too."""
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(
                running_daemon(unix=str(tmp_path / f"{name}.socket"), binary_unix=str(tmp_path / f"{name}b.socket"))
            )
            for name in ("one", "two")
        )

        async def passes(far_url: str, near_url: str) -> None:
            async with PeerAsync(one.url) as owner, PeerAsync(two.url) as client:
                state = await owner.add_state("a", 1, on_set=lambda _value: None)
                blob = await owner.add_state("b", Blob(b"\x01", mime="image/x"), on_set=lambda _value: None)
                await owner.add_method("join", lambda *parts: Blob(b"".join(parts), mime="text/x"))
                async with Bridge(far_url, near_url, prefix="plant2/"):
                    assert await mounted(client) == {"a": 1, "b": b"\x01"}
                    await client.set("plant2/a", [2])
                    assert state.value == [2]
                    await client.set("plant2/b", Blob(b"\x02\x03", mime="image/y"))
                    assert (blob.value, blob.value.mime) == (b"\x02\x03", "image/y")
                    found = await mounted(client)
                    assert found == {"a": [2], "b": b"\x02\x03"}
                    assert found["b"].mime == "image/y"
                    joined = await client.call("plant2/join", b"\x00", b"\xff")
                    assert (joined, joined.mime) == (b"\x00\xff", "text/x")
                    await state.remove()
                    await owner.add_state("last", 1)
                    await client.wait_for("plant2/last", timeout_s=10)
                    assert set(await mounted(client)) == {"b", "last"}

        run(passes(_url(one, far_scheme), _url(two, near_scheme)))


RULES: dict[str, tuple[str | jetbus.Rule | None, set[str]]] = {
    "all": (None, {"pump/speed", "pump/on", "valve", "pump/run"}),
    "text": ("pump/**", {"pump/speed", "pump/on", "pump/run"}),
    "value": ("** value>5", {"pump/speed"}),
    "rule": (jetbus.rule(ends_with="e"), {"valve"}),
    "none": ("nothing", set()),
}


@pytest.mark.parametrize(("rule", "wanted"), RULES.values(), ids=RULES)
def test_rule(far: RunningDaemon, near: RunningDaemon, rule: str | jetbus.Rule | None, wanted: set[str]) -> None:
    """Only what the rule matches is mounted."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            await owner.add_state("pump/speed", 7)
            await owner.add_state("pump/on", True)
            await owner.add_state("valve", 3)
            await owner.add_method("pump/run", lambda: None)
            async with Bridge(far.url, near.url, prefix="plant2/", rule=rule):
                mirror = await client.mirror().ready()
                assert {path for path in mirror if "$bridge" not in path} == {f"plant2/{path}" for path in wanted}

    run(case())


def test_value_rule_follows_values(far: RunningDaemon, near: RunningDaemon) -> None:
    """With a rule on values a state comes and goes as its value matches or not."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            state = await owner.add_state("level", 1)
            async with Bridge(far.url, near.url, prefix="plant2/", rule="** value>5"):
                fetch = client.fetch("plant2/level", policy="every")
                for value in (6, 7, 2, 9):
                    state.change(value)
                received = [await anext(fetch) for _ in range(4)]
                assert [event.kind for event in received] == ["add", "change", "remove", "add"]

    run(case())


def test_daemons_own_states_stay(far: RunningDaemon, near: RunningDaemon) -> None:
    """The far daemon's own states are never mounted, even if a rule asks for them; other states with $ are."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            await owner.add_state("$spark/mean", 1)
            async with Bridge(far.url, near.url, prefix="plant2/", rule=jetbus.rule(starts_with="$")):
                assert await mounted(client) == {"$spark/mean": 1}

    run(case())


def test_access(far: RunningDaemon, near: RunningDaemon) -> None:
    """Mounts can have access groups of their own, which hide them from users without the group."""

    async def case() -> None:
        async with PeerAsync(far.url) as owner, PeerAsync(near.url) as client:
            await owner.add_state("secret", 1)
            async with Bridge(far.url, near.url, prefix="plant2/", access={"fetchGroups": ["staff"]}) as bridge:
                assert bridge.status.mounted == 1
                assert await mounted(client) == {}

    run(case())


@pytest.mark.parametrize("prefix", ["", "/", "$jet/", "$plant/"])
def test_no_prefix(prefix: str) -> None:
    """A bus is mounted below a prefix of its own, which does not start with $."""
    with pytest.raises(ValueError, match="give one such as"):
        Bridge("jet://far", "jet://near", prefix=prefix)


def test_prefix_ends_with_a_slash() -> None:
    """A prefix is a node: the slash at its end may be left out."""
    assert Bridge("jet://far", "jet://near", prefix="plants/2").prefix == "plants/2/"


def test_no_sorting() -> None:
    """A sorted list cannot be mounted."""
    with pytest.raises(ValueError, match="leave the sorting out"):
        Bridge("jet://far", "jet://near", prefix="a", rule=jetbus.rule(sort_by="value"))


def test_a_login_does_not_make_hidden_states_public(far: RunningDaemon, near: RunningDaemon) -> None:
    """A bridge that logs in on the far bus must be told who may see on the near bus what it mounts."""
    logins: list[dict[str, Any]] = [{"far_user": "ann", "far_password": "x"}, {}]
    allowing: list[dict[str, Any]] = [{"public": True}, {"access": {"fetchGroups": ["staff"]}}]
    for login in logins:
        url = far.url if login else far.url.replace("://", "://ann:x@")
        with pytest.raises(ValueError, match=r"say who may see it here \(access\), or that everybody may \(public\)"):
            Bridge(url, near.url, prefix="plant2/", **login)
        for options in allowing:
            assert Bridge(url, near.url, prefix="plant2/", **login, **options).prefix == "plant2/"
