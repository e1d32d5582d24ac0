"""``jet bridge``: another bus mounted into this one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.arguments import read_rule
from jetbus.cli.command import DURATION, Example, command, find_named_bus
from jetbus.cli.exit_codes import usage_error
from jetbus.cli.output import Output
from jetbus.cli.streams import now, report_to_stderr, stop_on_sigterm
from jetbus.cli.target import Target
from jetbus.peer.address import read_url

if TYPE_CHECKING:
    from jetbus.bridge import Status

COLUMNS = ("ts", "status", "mounted", "blocked")


@command(
    examples=[
        Example("jet bridge $FAR_URL --prefix plant2 --for 1s", "the bus at FAR_URL below plant2/, for a second"),
        Example(
            "jet bridge $FAR_URL --prefix tanks --rule 'plant/tank/*' --fetch-groups staff --set-groups staff --for 1s",
            "a part of it, for staff only",
        ),
    ]
)
@click.argument("far", metavar="URL|CONTEXT")
@click.option("--prefix", required=True, metavar="P", help="where it is mounted: below P/")
@click.option("--rule", metavar="RULE", help="only what matches")
@click.option("--far-user", metavar="NAME", help="log in there as this user")
@click.option("--far-password-file", metavar="FILE", help="that user's password, - for stdin; else it is asked for")
@click.option("--fetch-groups", metavar="NAME,...", help="only users of these groups see here what is mounted")
@click.option("--set-groups", metavar="NAME,...", help="only users of these groups may set it here")
@click.option("--call-groups", metavar="NAME,...", help="only users of these groups may call it here")
@click.option("--public", is_flag=True, help="with a login there: everybody here may see what that user sees there")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="end after this time, such as 10s")
def bridge(
    bus: Target,
    form: str | None,
    far: str,
    prefix: str,
    rule: str | None,
    far_user: str | None,
    far_password_file: str | None,
    fetch_groups: str | None,
    set_groups: str | None,
    call_groups: str | None,
    public: bool,
    for_s: float | None,
) -> None:
    """Mount the bus at URL into this one, below P/, until Ctrl-C, SIGTERM or the end of --for.

    States, methods, set and call go through. If the other bus is lost, its states and methods leave this one until it
    is back. Loops of bridges are recognised. It works with every daemon, and prints what happens to the connections.

    A bridge cannot find out which groups protect a state on the other bus. If it logs in there (--far-user), say who
    may see the mounted states here.
    """
    if rule is not None:
        read_rule(rule)
    # Checked before the login, which may prompt for a password.
    from jetbus.bridge.loop_guard import read_prefix

    try:
        read_prefix(prefix)
    except ValueError as problem:
        raise usage_error(str(problem)) from None
    there = find_named_bus(far, user=far_user, password_file=far_password_file, file_option="--far-password-file")
    access = _access(fetchGroups=fetch_groups, setGroups=set_groups, callGroups=call_groups)
    # The login may also be a part of the URL.
    user = there.user if there.user is not None else read_url(there.url).user
    if user is not None and access is None and not public:
        raise usage_error(
            f"jet bridge logs in there as {user}, who may see what others may not; say who may see it here with"
            " --fetch-groups, --set-groups and --call-groups, or that everybody may with --public"
        )
    from jetbus.bridge import run_bridge

    with Output(COLUMNS, form, stream=True, value="status") as out, stop_on_sigterm() as stop:
        # It sets the same event as SIGTERM, so that both end the bridge in the same orderly way.
        timer = None if for_s is None else threading.Timer(for_s, stop.set)
        report_to_stderr()
        try:
            run_bridge(
                there.url,
                bus.url,
                prefix=prefix,
                rule=rule,
                wait=bus.wait,
                stop=stop,
                name="jet bridge",
                access=access,
                public=public,
                on_status=lambda status: _tell(out, status, timer),
                **_logins(there, bus),
            )
        finally:
            if timer is not None:
                timer.cancel()


def _tell(out: Output, status: Status, timer: threading.Timer | None) -> None:
    if status.phase.name == "STOPPED":
        return  # that is not news: it was asked for, or an error tells why
    told = {"ts": now(), "status": status.phase.value, "mounted": status.mounted}
    out.put({**told, "blocked": status.blocked} if status.blocked else told)
    if timer is not None and status.phase.name == "MOUNTED" and not timer.is_alive() and not timer.finished.is_set():
        timer.start()  # the time counts from when all is mounted


def _access(**lists: str | None) -> dict[str, list[str]] | None:
    """Return the access of all that is mounted, None if no groups are given."""
    given = {
        name: [group.strip() for group in text.split(",") if group.strip()] for name, text in lists.items() if text
    }
    return given or None


def _logins(far: Target, near: Target) -> dict[str, Any]:
    return {
        f"{side}_{name}": value
        for side, bus in (("far", far), ("near", near))
        for name, value in bus.get_login().items()
    }
