"""What begins with a slash in `elsewise chat`: one function for each command."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from app.cli.common import print_table
from app.cli.printing import probability, shown, token_table
from app.workbench.path_tokens import content_of
from runtime import Origin, RuntimeFault, TokenRun
from ui import Refusal, TurnView

if TYPE_CHECKING:
    from app.cli.chat import Chat

SHOWN, NUMBERED = 3, 10  # alternatives of each token where all tokens are listed, and of a single one


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it takes, what is said of it, and what it does."""

    takes: str
    says: str
    run: Callable[[Chat, str], Awaitable[None]]


async def obey(chat: Chat, line: str) -> None:
    """Runs a line that begins with a slash.

    Raises:
        Refusal: There is no such command, or it cannot do that; the sentence says what can be done.
    """
    name, _, rest = line[1:].strip().partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        raise Refusal(f"there is no command /{name}; /help lists them (a space in front makes a message of it)")
    await command.run(chat, rest.strip())


async def _help(chat: Chat, rest: str) -> None:  # noqa: ARG001  # as all commands
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    for name, command in COMMANDS.items():
        table.add_row(Text(f"/{name} {command.takes}", style="bold"), Text(command.says))
    for keys, what in KEYS.items():
        table.add_row(Text(keys, style="bold"), Text(what))
    print_table(table)


async def _quit(chat: Chat, rest: str) -> None:  # noqa: ARG001  # as all commands
    chat.over = True


async def _new(chat: Chat, rest: str) -> None:
    chat.farewell()
    chat.view = await chat.workbench.new_session()
    if rest:
        await chat.workbench.rename_session(chat.id, rest)
        chat.view = await chat.workbench.open_session(chat.id)
    chat.note("a new session")


async def _model(chat: Chat, name: str) -> None:
    if not name:
        table = Table(box=None, show_header=False, pad_edge=False)
        for choice in await chat.workbench.models():
            table.add_row("*" if choice.loaded else "", Text(choice.source, style="bold"), Text(choice.detail))
        print_table(table)
        return
    before = chat.supervisor.source
    await chat.supervisor.change(source=name)
    try:
        model = await chat.load()
        if model.chat_template is None:
            raise Refusal(f"{name} has no chat template")
    except (RuntimeFault, Refusal):
        chat.note(f"back to {before}")
        await chat.supervisor.change(source=before)
        await chat.load()
        raise
    chat.view = await chat.workbench.open_session(chat.id)
    chat.greet(model)


async def _system(chat: Chat, text: str) -> None:
    if not text:
        held = (await chat.workbench.setup(chat.id)).system
        click.echo(held or "(no system prompt; the model's template may bring one)")
        return
    there = bool(chat.said)
    await chat.workbench.set_system(chat.id, "" if text == "none" else text)
    chat.view = await chat.workbench.open_session(chat.id)
    chat.note("a new beginning; what was said before stays (/branch)" if there else "set")


async def _set(chat: Chat, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if not name:
        table = Table(box=None, show_header=False, pad_edge=False)
        for option in (await chat.workbench.setup(chat.id)).options:
            held = chat.call.get(option.name)
            value = json.dumps(option.value if held is None else held, ensure_ascii=False, default=str)
            table.add_row(Text(option.name, style="bold"), Text(value), Text(option.source if held is None else "call"))
        print_table(table)
        return
    if not value.strip():
        raise Refusal(f"/set {name} needs a value, such as /set temperature 0.7 (null: as if nobody had set it)")
    try:
        told = json.loads(value)
    except ValueError:
        told = value.strip()
    await chat.workbench.set_option(chat.id, name, told)
    chat.call.pop(name, None)  # of the command line, which would go before it
    chat.note(f"{name} is {json.dumps(told, ensure_ascii=False)} from the next answer on")


async def _regenerate(chat: Chat, rest: str) -> None:  # noqa: ARG001  # as all commands
    await chat.answer(chat.workbench.regenerate(chat.id, chat.last_answer().node_id))


async def _continue(chat: Chat, rest: str) -> None:  # noqa: ARG001  # as all commands
    await chat.answer(chat.workbench.continue_turn(chat.id, chat.last_answer().node_id))


# ---- why ----------------------------------------------------------------------------------------------------------


def _own(turn: TurnView) -> tuple[int, TokenRun]:
    """Where an answer's own tokens begin in its run, and they."""
    own = np.flatnonzero(turn.run.origin != Origin.TEMPLATE)
    if not len(own):
        raise Refusal("the answer has no tokens")
    return int(own[0]), turn.run[int(own[0]) :]


async def _why(chat: Chat, rest: str) -> None:
    _, run = _own(chat.last_answer())
    first, dash, last = rest.partition("-")
    if not rest:
        start, end = 1, len(run)
    else:
        start = _number(first, len(run), "token")
        end = _number(last, len(run), "token") if dash else start
    decode = chat.workbench.vocabulary.bytes_of
    if start != end or len(run) == 1:
        few = _narrowed(run[start - 1 : end], SHOWN)
        print_table(token_table(few, decode, first=start))
        return
    record = run.record(start - 1)
    print_table(token_table(_narrowed(run[start - 1 : end], 0), decode, first=start))
    table = Table(box=None, show_header=False, pad_edge=False)
    for place, (token, logprob) in enumerate(list(zip(record.top_ids, record.top_logprobs, strict=True))[:NUMBERED], 1):
        mark = "*" if token == record.token_id else ""
        table.add_row(str(place), mark, Text(shown(decode(token).decode(errors="replace"))), probability(logprob))
    print_table(table)
    chat.note(f"/branch at {start} NUMBER goes on with one of these instead")


def _narrowed(run: TokenRun, count: int) -> TokenRun:
    return replace(run, top_ids=run.top_ids[:, :count], top_logprobs=run.top_logprobs[:, :count], stages=None)


def _number(text: str, most: int, what: str) -> int:
    """A number that counts from 1.

    Raises:
        Refusal: It is none, or out of range.
    """
    if not text.strip().isdecimal() or not 1 <= int(text) <= most:
        raise Refusal(f"{text.strip() or 'nothing'!r} is no {what}: give a number from 1 to {most:,}")
    return int(text)


# ---- branches -------------------------------------------------------------------------------------------------------


async def _branch(chat: Chat, rest: str) -> None:
    word, _, more = rest.partition(" ")
    if not rest:
        _list_branches(chat)
    elif word == "at":
        await _branch_at(chat, more.strip())
    elif word == "turn":
        await _branch_turn(chat, more.strip())
    else:
        rows = chat.view.branches
        row = rows[_number(rest, len(rows), "branch (/branch lists them)") - 1]
        chat.view = await chat.workbench.select(chat.id, row.node_id)
        chat.note(f"on {row.name!r}; its last answer:")
        click.echo(content_of(chat.said[-1].run).strip())


def _list_branches(chat: Chat) -> None:
    if not chat.view.branches:
        raise Refusal("nothing was said yet")
    table = Table(box=None, show_header=False, pad_edge=False)
    for number, row in enumerate(chat.view.branches, 1):
        name = Text("  " * row.depth).append(f"{row.before} " if row.before else "", style="dim").append(row.name)
        table.add_row(str(number), "*" if row.current else "", name, "" if row.likely is None else f"{row.likely:.2f}")
    print_table(table)


async def _branch_at(chat: Chat, rest: str) -> None:
    turn = chat.last_answer()
    begin, run = _own(turn)
    first, _, wanted = rest.partition(" ")
    at = _number(first, len(run), "token of the last answer (/why numbers them)") - 1
    record, decode = run.record(at), chat.workbench.vocabulary.bytes_of
    others = [token for token in record.top_ids if token != record.token_id]
    if not wanted:
        choice = others[:1]
    elif wanted.strip().isdecimal():
        choice = [record.top_ids[_number(wanted, len(record.top_ids), "alternative") - 1]]
    else:
        choice = [t for t in others if decode(t).decode(errors="replace").strip() == wanted.strip()][:1]
    if not choice:
        raise Refusal(f"token {at + 1} has no such alternative; /why {at + 1} lists them")
    known = b"".join([*run[:at].token_bytes, decode(choice[0])]).decode(errors="ignore")  # a half character follows
    await chat.answer(chat.workbench.branch(chat.id, turn.node_id, begin + at, choice[0]), known)


async def _branch_turn(chat: Chat, rest: str) -> None:
    while chat.view.earlier:
        chat.view = await chat.workbench.show_earlier(chat.id)
    own = [turn for turn in chat.said if turn.role == "user"]
    number, _, text = rest.partition(" ")
    if not rest:
        for place, turn in enumerate(own, 1):
            click.echo(f"{place}  {' '.join(content_of(turn.run).split())}")
        return
    turn = own[_number(number, len(own), "message of yours (/branch turn lists them)") - 1]
    if not text.strip():
        raise Refusal(f"write what to say in its place: /branch turn {number} TEXT")
    await chat.answer(chat.workbench.send(chat.id, text.strip(), replaces=turn.node_id))


COMMANDS: Final = {
    "help": Command("", "this list", _help),
    "quit": Command("", "leaves; so does Ctrl-D", _quit),
    "new": Command("[TITLE]", "begins another session", _new),
    "model": Command("[NAME]", "lists the models of the shelf, or goes on with another one", _model),
    "system": Command("[TEXT]", "shows the system prompt, or begins anew under another one (none: without)", _system),
    "set": Command("[NAME VALUE]", "lists the settings of the sampler, or changes one: /set temperature 0.7", _set),
    "regenerate": Command("", "another answer to the last message", _regenerate),
    "continue": Command("", "goes on with an answer that was stopped or cut", _continue),
    "why": Command("[N | N-M]", "the tokens of the last answer: how likely each was, and what else was", _why),
    "branch": Command(
        "[N | at TOKEN [OTHER] | turn [N TEXT]]",
        "lists the branches, goes to one, or makes one: with another token of the last answer (the likeliest other one, a "
        "number of /why TOKEN or a word), or with another text for a message of yours",
        _branch,
    ),
}
ALIASES: Final = {"exit": "quit", "bye": "quit", "?": "help", "retry": "regenerate", "regen": "regenerate"}
KEYS: Final = {
    "Enter": "sends the message",
    "Alt-Enter, \\ Enter": 'another line; inside """ Enter does it too',
    "Up, Down": "what was typed before",
    "Ctrl-C": "stops the answer, which is kept as far as it came",
    "Ctrl-D": "leaves",
}
