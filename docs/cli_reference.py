"""The reference of `jet` as Markdown, made from the commands themselves: the tables in cli.md, and a page a command.

`reference.py` puts the tables into cli.md and writes the pages to the folder `cli`.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from jetbus.cli.command import SHARED, Command
from jetbus.cli.exit_codes import Code
from jetbus.cli.main import COMMANDS, jet
from jetbus.cli.tools import TOOLS, TYPES

MADE = "<!-- made by docs/reference.py -->"
MORE = "[The command `jet`](../cli.md): how to select a bus, options of all commands, exit codes."


def commands() -> Iterator[tuple[str, Command]]:
    """All commands with their full names, families taken apart."""
    with click.Context(jet) as context:
        for name in COMMANDS:
            found = jet.get_command(context, name)
            members = found.commands if isinstance(found, click.Group) else {"": found}
            for member, command in members.items():
                if isinstance(command, Command):
                    yield f"jet {name} {member}".strip(), command


def reference() -> str:
    """The tables of commands, shared options, exit codes and older names."""
    return "\n".join([_overview(), _shared(), _exit_codes(), _tools()])


def pages() -> dict[str, str]:
    """The page of each command by its path below docs/."""
    return {page_of(name): _page(name, command) for name, command in commands()}


def page_of(name: str) -> str:
    return f"cli/{name.removeprefix('jet ').replace(' ', '-')}.md"


def _overview() -> str:
    lines = ["| command | |", "| --- | --- |"]
    for name, command in commands():
        about = " ".join((command.help or "").split("\n\n")[0].split())
        lines.append(f"| [`{name}`]({page_of(name)}) | {about.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _shared() -> str:
    lines = ["| options of all commands | |", "| --- | --- |"]
    with click.Context(jet) as context:
        lines += [row for option in SHARED if (row := _option(option, context))]
    return "\n".join(lines) + "\n"


def _exit_codes() -> str:
    rows = [f"| {code.value} | {code.meaning} |" for code in Code]
    return "\n".join(["| exit code | |", "| --- | --- |", *rows]) + "\n"


def _tools() -> str:
    rows = []
    for name, tool in TOOLS.items():
        line = f"{name} {tool.arguments}".strip().replace(TYPES, "TYPE")
        rows.append(f"| `{line}` | {(tool.run.__doc__ or '').rstrip('.')} | `jet {tool.instead}` |")
    return "\n".join(["| tool of jetpeer | what it does | with more to it |", "| --- | --- | --- |", *rows]) + "\n"


def _page(name: str, command: Command) -> str:
    context = click.Context(command, info_name=name)
    lines = [f"# {name}", "", MADE, "", f"`{' '.join([name, *command.collect_usage_pieces(context)])}`", ""]
    lines += [" ".join(paragraph.split()) + "\n" for paragraph in (command.help or "").split("\n\n")]
    own = [parameter for parameter in command.params if parameter.name not in {option.name for option in SHARED}]
    options = [row for parameter in own if (row := _option(parameter, context))]
    if options:
        lines += ["| option | |", "| --- | --- |", *options, ""]
    lines.append("```sh")
    for example in command.examples:
        lines += [f"# {example.purpose}", example.line]
    return "\n".join([*lines, "```", "", MORE, ""])


def _option(parameter: click.Parameter, context: click.Context) -> str | None:
    """The row of an option; arguments are explained by the text."""
    record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
    if record is None:
        return None
    names, text = (" ".join(part.replace("|", "\\|").split()) for part in record)
    return f"| `{names}` | {text} |"
