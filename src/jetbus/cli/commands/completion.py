"""``jet completion``: shell completion of commands, options, paths on the bus and contexts.

Completion must be quick and silent: whatever goes wrong, there are just no completions.
"""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from jetbus.cli import target
from jetbus.cli.command import Example, collect_bus_options, command
from jetbus.cli.element_schemas import complete_values
from jetbus.cli.exit_codes import usage_error
from jetbus.cli.output import Output
from jetbus.rules import Rule

SHELLS = ("bash", "zsh", "fish")


@command(
    examples=[
        Example(
            "jet completion bash > jet.bash",
            'then `source jet.bash`, or put `eval "$(jet completion bash)"` into ~/.bashrc',
        ),
        Example("jet completion fish > jet.fish", "save it in ~/.config/fish/completions"),
    ],
    bus=False,
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(form: str | None, shell: str) -> None:
    """Print the script with which SHELL completes commands, options and paths on the bus.

    The script is printed as plain text unless --output is given.
    """
    from jetbus.cli.main import COMPLETE, jet

    found = get_completion_class(shell)
    if found is None:
        raise usage_error(f"there is no completion for {shell}; choose from {', '.join(SHELLS)}")
    script = found(jet, {}, "jet", COMPLETE).source()
    Output(("shell", "script"), form or "value", value="script").put_all([{"shell": shell, "script": script}])


PATHS_MAX = 500
"""If there are more paths than this, only their next node is completed."""


def complete_paths(options: dict[str, Any], incomplete: str) -> list[CompletionItem]:
    """Return the paths on the bus that start with ``incomplete``."""
    try:
        found = _find_paths(options, incomplete)
    except Exception:
        return []  # the command itself reports the problem
    return [CompletionItem(path) for path in found]


def complete_enum(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the values that the schema of the state in the command line allows."""
    try:
        path, options = context.params["path"], collect_bus_options(context)
        with _find_bus(options).connect() as peer:
            return [CompletionItem(text) for text in complete_values(peer, path, incomplete)]
    except Exception:
        return []


def complete_contexts(incomplete: str) -> list[CompletionItem]:
    """Return the names of contexts that start with ``incomplete``."""
    try:
        names = target.Contexts.load().buses
    except Exception:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _find_paths(options: dict[str, Any], incomplete: str) -> list[str]:
    with _find_bus(options).connect() as peer:
        events = peer.look(Rule(path=(("startsWith", incomplete),)) if incomplete else Rule())
    paths = sorted(event.path for event in events)
    # Shells do not show thousands of completions without a question.
    if len(paths) <= PATHS_MAX:
        return paths
    return sorted({_cut_to_node(path, len(incomplete)) for path in paths})[:PATHS_MAX]


def _find_bus(options: dict[str, Any]) -> target.Target:
    if options["user"] and not options["password_file"]:
        options = options | {"user": None}  # a password cannot be prompted for here
    return target.find_bus(**options)


def _cut_to_node(path: str, typed: int) -> str:
    end = path.find("/", typed)
    # With the slash, so that the next Tab continues below the node.
    return path if end < 0 else path[: end + 1]
