"""``jet help``: commands, short texts about subjects that commands share, and words of other systems."""

from __future__ import annotations

import click

from jetbus.cli.command import Example, collect_bus_options, command
from jetbus.cli.exit_codes import Code, Failure, find_similar
from jetbus.cli.output import Output, choose_format, print_line
from jetbus.cli.target import find_bus
from jetbus.cli.words import WORDS, find_word, list_names

TYPING_ERROR = 0.85
"""Likeness of two words from which on one is taken for a typing error of the other."""

RULES = """\
A rule selects states and methods by path and value. Quote it, so that the shell leaves it alone.

  plant/pump/speed              exactly that path
  'plant/*/speed'               * is any text without a slash
  'plant/**'                    ** is any text: everything below plant
  'plant/** value>7'            only while the value is greater than 7
  '** value.unit="C"'           a field of a value that is an object
  '**temp** nocase'             in capital or small letters
  '"a path with spaces"'        exactly that path, as a JSON string

Tests are value> value>= value< value<= value= value!= and value: with the type number, string, boolean or
object. Several tests must all hold. Texts in tests are JSON: value="on".
"""

INSTANTS = """\
An instant is given as

  now, -2h, -1h30m              now, and that long ago: ms, s, m, h, d, w
  06:45, 06:45:30               a time of the clock, the last one that has passed
  today, yesterday, monday      the beginning of a day; monday is the last one
  'yesterday 06:45'             both
  2026-03-01T12:00:00Z          RFC 3339; without an offset it is UTC

Days and times of the clock are meant in the time zone of this machine.
"""

VALUES = """\
Values are JSON: 7, true, null, '"text"', '{"rpm": 1200}', '[1, 2]'. With --string a value is taken as text, so that
it needs no quotes: `jet set plant/pump/mode auto --string`. A value of - is read from stdin.
"""

ADDRESSES = """\
The bus is taken from --url, --context, JET_URL, JET_CONTEXT, the current context, or jet://localhost:11122.

  jet://HOST:PORT               TCP, port 11122 unless given; jets:// with TLS
  ws://HOST:PORT                WebSocket, port 11123 unless given; wss:// with TLS
  unix:///PATH, unix://@NAME    a Unix socket
  jetb://HOST:PORT              the binary protocol, port 11124 unless given; jetbs:// with TLS

`jet context add NAME URL` gives a bus a name.
"""

OUTPUT = """\
Output is a table on a terminal and JSON lines in a pipe, or as --output says:

  table                         columns, cut to the width of the terminal
  jsonl, json                   a JSON object per line, or one array of them
  csv                           with a line of names
  value                         only the values, for scripts

Errors go to stderr as one line, and each kind has an exit code.
"""

TOPICS = {"rules": RULES, "instants": INSTANTS, "values": VALUES, "addresses": ADDRESSES, "output": OUTPUT}


@command(
    name="help",
    bus=False,
    examples=[
        Example("jet help rules", "the syntax of rules"),
        Example("jet help plant/pump/add", "a method: what it does, takes and returns"),
    ],
)
@click.argument("word", nargs=-1, metavar="[WORD]...")
def show_help(form: str | None, word: tuple[str, ...]) -> None:
    """Explain a command, a topic, a word of other systems, or a state or method at a path.

    Topics are rules, addresses, instants, values and output. Words are those that newcomers look for, such as
    subscribe, retained or backup; `jet help words` lists them. A path, such as plant/pump/add, is explained by its
    owner, as `jet describe` prints it.
    """
    context = click.get_current_context()
    name = " ".join(word)
    if name in TOPICS:
        for line in TOPICS[name].splitlines():
            print_line(line)
    elif name == "words":
        _print_words(form, list(WORDS))
    elif "/" in name:
        from jetbus.cli.commands.describe import print_descriptions

        print_descriptions(find_bus(**collect_bus_options(context)), form, name)
    elif not word or (found := _find_command(word)) is None:
        _print_word(context, form, name)
    else:
        click.echo(found)


def _find_command(words: tuple[str, ...]) -> str | None:
    """Return the help of a command such as ``user add``; None if there is none."""
    from jetbus.cli.main import jet

    group: click.Command = jet
    # The contexts that click would make, from which it takes all words of the usage line.
    inner = click.Context(jet, info_name="jet", **jet.context_settings)
    for name in words:
        found = group.get_command(inner, name) if isinstance(group, click.Group) else None
        if found is None:
            return None
        group, inner = found, click.Context(found, info_name=name, parent=inner)
    return inner.get_help()


def _print_word(context: click.Context, form: str | None, name: str) -> None:
    if not name:
        click.echo(context.find_root().get_help())
        return
    found = find_word(name)
    if found is None:
        from jetbus.cli.main import COMMANDS

        # People look for words of other trades here: only a typing error is worth a guess.
        known = {known.casefold(): known for known in (*TOPICS, *COMMANDS, *list_names())}
        similar = find_similar(name.casefold(), known, TYPING_ERROR)
        hint = (
            f"did you mean {known[similar]}?"
            if similar
            else "`jet help words` lists the words, `jet --help` the commands"
        )
        raise Failure(f"there is no help about {name}; {hint}", Code.NOT_FOUND)
    _print_words(form, [found[0]])


def _print_words(form: str | None, names: list[str]) -> None:
    import sys

    form = form or choose_format(sys.stdout)
    rows = [
        {"word": name, "page": WORDS[name].page, "command": WORDS[name].command, "text": WORDS[name].text}
        for name in names
    ]
    if form == "table" and len(rows) == 1:
        (row,) = rows
        print_line(f"{row['word']}: {row['text']}")
        if row["command"]:
            print_line(f"Try: {row['command']}")
        print_line(f"More: the page {row['page']} of the docs")
        return
    columns = ("word", "command", "text") if form == "table" else ("word", "text", "command", "page")
    Output(columns, form, value="text").put_all(rows)
