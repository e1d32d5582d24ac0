"""``jet completion``: the script that lets a shell complete commands, options and live paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from jetbus.cli.failures import usage
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output

SHELLS = ("bash", "zsh", "fish")


@command(
    examples=[
        Example(
            "jet completion bash > jet.bash",
            'then `source jet.bash`, or put `eval "$(jet completion bash)"` into ~/.bashrc',
        ),
        Example("jet completion fish > jet.fish", "to be put into ~/.config/fish/completions"),
    ],
    bus=False,
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(form: str | None, shell: str) -> None:
    """The script with which SHELL completes commands, options and the paths that are on the bus.

    It is printed as it is, unless --output asks for another form.
    """
    from jetbus.cli.main import COMPLETE, jet

    found = get_completion_class(shell)
    if found is None:
        raise usage(f"there is no completion for {shell}; it is one of {', '.join(SHELLS)}")
    script = found(jet, {}, "jet", COMPLETE).source()
    Output(("shell", "script"), form or "value", value="script").put_all([{"shell": shell, "script": script}])
