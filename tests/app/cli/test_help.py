"""The output of `--help` for every command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from app.cli.bench import PARTS
from app.cli.group import cli
from tests.app.cli.conftest import Elsewise


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command, and of all below it."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*words, name))


COMMANDS = list(commands(cli))


def test_all_commands_are_found_at_every_depth() -> None:
    assert {(), ("ask",), ("bench",), ("models", "fetch"), ("sessions", "diff")} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "elsewise")
def test_no_help_text_shows_its_layout_marks(elsewise: Elsewise, words: tuple[str, ...]) -> None:
    done = elsewise(*words, "--help")
    assert done.code == 0
    assert "Usage: " in done.out
    assert "\\b" not in done.out  # the mark in the source text
    assert "\b" not in done.out
    assert "\f" not in done.out


def test_the_help_of_bench_explains_every_part_in_lines_of_its_own(elsewise: Elsewise) -> None:
    told = elsewise("bench", "--help").out.partition("\n  Parts:\n")[2]
    assert re.search(r"^ +W1 particles, .* process\),$", told, re.MULTILINE)  # line breaks of the source are kept
    assert set(PARTS) <= set(re.findall(r"\w+", told))


@pytest.mark.parametrize("command", ["window", "ask"])
def test_the_demo_option_is_refused_for_commands(elsewise: Elsewise, command: str) -> None:
    done = elsewise("--demo", command)
    assert (done.code, done.out) == (2, "")
    assert f"leave it out, or the command {command}" in done.err
