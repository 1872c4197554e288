"""`elsewise chat`: reads messages from a terminal or a pipe, streams the answers, and runs commands."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from rich.text import Text

from app.cli.common import console, print_table, rows_table
from app.cli.options import AnswerOptions, Flags, answer_options, can_chat, json_or_text, precision_note, with_token_ids
from app.cli.printing import Wrapper, for_stdout, one_line, probability, shown, speculation, token_table, without_controls
from app.cli.saved_session import Opened, check_stack, on_thread, opened, session_called
from app.cli.settings import CliSettings, utf8
from app.workbench.refusals import stored
from app.workbench.setup.values import spoken_name
from app.workbench.tree.runs import content_of
from app.workbench.workbench import PRESET
from runtime import Finish, GenerationOptions, LanguageModel, Origin, RuntimeFault, TokenRun
from ui import Event, Refusal, SessionChanged, SessionView, TokensArrived, TurnChanged, TurnStatus, TurnView

QUOTES = '"""'
PROMPT, CONTINUED = "> ", "… "


InputReader = Callable[[], Awaitable[str | None]]  # reads the next message; None at the end


def is_open(text: str) -> bool:
    """Whether a message continues in the next line: after a backslash, or inside triple quotes."""
    if text.startswith(QUOTES):
        return QUOTES not in text[len(QUOTES) :]
    return text.endswith("\\")


def message_of(text: str) -> str:
    """A whole message without the backslashes or quotes that joined its lines."""
    if text.startswith(QUOTES):
        inside, _, behind = text[len(QUOTES) :].partition(QUOTES)
        return (inside + behind).strip("\n")
    return text.replace("\\\n", "\n").removesuffix("\\")


def piped() -> InputReader:
    """Reads messages from the lines of standard input, one at a time: the writer may wait for the answers."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")

    async def read() -> str | None:  # blocks the loop, which is idle; Ctrl-C ends the wait
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = sys.stdin.readline()
            if not line:
                return None
            text = line.rstrip("\r\n")
            while is_open(text) and (line := sys.stdin.readline()):
                text += "\n" + line.rstrip("\r\n")
        finally:
            signal.signal(signal.SIGINT, before)
        return message_of(text)

    return read


def terminal(history: Path) -> InputReader:
    """A line editor in this terminal; Ctrl-C drops the line, Ctrl-D ends the conversation.

    Args:
        history: The file of earlier input; only its owner can read it.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.styles import Style

    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    keys = KeyBindings()
    keys.add("enter")(enter)
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    history.touch(mode=0o600)
    session = PromptSession[str](
        message=[("class:prompt", PROMPT)],
        prompt_continuation=[("class:prompt", CONTINUED)],
        style=Style.from_dict({"prompt": "ansigreen bold"}),
        history=FileHistory(str(history)),
        completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
        complete_while_typing=False,
        key_bindings=keys,
        multiline=True,
    )

    async def read() -> str | None:
        while True:
            try:
                return message_of(await session.prompt_async())
            except KeyboardInterrupt:
                click.secho("(Ctrl-D or /quit ends the chat)", dim=True, err=True)
            except EOFError:
                return None

    return read


NOT_IN_CHAT = {"raw": False, "batch": None, "alternatives": 10, "as_json": False, "sample_top_k": None}  # of `ask` only
RECAP = 400  # characters of the last answer that are shown when a session is continued
EPILOG = """\b
Lines that begin with a slash are commands; /help lists them. Alt-Enter, or a backslash at the end of a line, begins another
line of the message, and so does Enter inside \\"\\"\\". Ctrl-C stops an answer and keeps what was written so far; Ctrl-D ends
the chat.

\b
Examples:
  elsewise chat
  elsewise chat --session colours --temperature 0.4
  printf 'Name a colour.\\nAnd another?\\n' | elsewise chat --session colours
"""


@click.command(epilog=EPILOG)
@answer_options
@click.pass_obj
def chat(settings: CliSettings, /, **given: Any) -> None:
    """Chats with a model; the session is saved as you go."""
    if sys.stdin is None:
        raise click.ClickException("stdin is closed; messages are read from it")
    flags: Flags = {**NOT_IN_CHAT, **given}  # type: ignore[typeddict-item]  # click gives the others
    asked = AnswerOptions.of(settings, flags, chats=True)
    if asyncio.run(_chat(settings, asked, flags["session"])):
        raise click.exceptions.Exit(1)


chat.params = [option for option in chat.params if option.name not in NOT_IN_CHAT]
for option in chat.params:
    if option.name == "max_tokens":
        assert isinstance(option, click.Option)
        option.show_default = str(PRESET.max_tokens)


async def _chat(settings: CliSettings, asked: AnswerOptions, title: str | None) -> bool:
    """Runs the conversation; returns whether an answer failed, always false if stdin and stdout are a terminal."""
    instead = "close it, or use elsewise ask without --session"
    async with opened(settings.data, asked, PRESET, holder="chat", instead=instead) as place:
        talk = Chat(place, asked)
        await talk.begin(title)
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        await talk.run(terminal(settings.data.root / "chat_history") if at_terminal else piped())
        talk.farewell()
        return talk.failed and not at_terminal


class Chat:
    """One conversation.

    Attributes:
        view: The session's last view.
        failed: Whether an answer failed.
        over: Whether the conversation should end.
    """

    def __init__(self, place: Opened, asked: AnswerOptions) -> None:
        self.store, self.supervisor, self.workbench, self.call = place
        self.view = SessionView(0, "", (), ())
        self.failed = False
        self.over = False
        self._asked = asked
        self._wrapper: Wrapper | None = None
        self._finish = Finish.NONE
        self._status = console.status("")
        self.workbench.subscribe(self._hear)

    # ---- from the beginning to the end --------------------------------------------------------------------------------

    async def begin(self, title: str | None) -> None:
        """Loads the model and opens the session.

        Raises:
            click.UsageError: The command's options contradict the session.
            click.ClickException: The model has no chat template.
            RuntimeFault: It cannot be loaded.
        """
        model = await self.supervisor.model()
        if model.chat_template is None:
            raise click.ClickException(f"{model.info.name} has no chat template; give it one, such as --format plain")
        await self.learn(model)
        if title is None:
            await self.new()
        else:
            self.view = await self.workbench.sessions.open(await session_called(self.store, title))
        setup = await self.workbench.setup.view(self.id)
        check_stack(self.view.title, self._asked, setup)
        if self._asked.system is not None and self._asked.system != setup.system:
            if self.said:
                raise click.UsageError(
                    f"--system: the session {self.view.title!r} has another system prompt; leave out --system, "
                    "or begin anew in it with /system"
                )
            await self.workbench.setup.set_system(self.id, self._asked.system)
        self.greet(model)

    async def new(self) -> None:
        """Begins another session, with the system prompt of the command line."""
        self.view = await self.workbench.sessions.new()
        if self._asked.system is not None:
            await self.workbench.setup.set_system(self.id, self._asked.system)

    async def learn(self, model: LanguageModel) -> None:
        """Loads a model's vocabulary, and looks up the tokens that the command line gives by their text.

        Raises:
            InvalidRequestError: A text is not a token of the model.
            StoreError: The vocabulary cannot be saved.
        """
        named = {name: value for name, value in self._asked.naming.items() if name in self.call}
        self.call.update(with_token_ids(named, await model.byte_vocab_async()))
        await self.workbench.services.vocabulary.learn(model)

    async def run(self, read: InputReader) -> None:
        """Answers every message until the input ends or `/quit`."""
        while not self.over and (text := await read()) is not None:
            if not text.strip():
                continue
            try:
                text = _utf8(text)
                if text.startswith("/"):
                    await run_command(self, text)
                else:
                    await self.answer(self.workbench.answers.send(self.id, text))
            except (Refusal, RuntimeFault, click.ClickException) as fault:
                self.failed = True
                self.note(fault.format_message() if isinstance(fault, click.ClickException) else str(fault))

    def greet(self, model: LanguageModel) -> None:
        """Prints the model's name and the end of the conversation so far."""
        facts = ", ".join(filter(None, (model.info.backend, precision_note(model), f"context {model.info.context_length:,}")))
        self.note(f"{spoken_name(model.info)} ({facts}). /help lists the commands.")
        if self.said:
            turns = f"{len(self.said):,} turns" if len(self.said) > 1 else "1 turn"
            self.note(f"continuing {self.view.title!r}, {turns}")
            last = content_of(self.said[-1].run).strip()
            self.note(f"… {last[-RECAP:]}" if len(last) > RECAP else last)

    def farewell(self) -> None:
        """Prints how to continue the conversation."""
        if self.said:
            self.note(f"saved as {self.view.title!r}: elsewise chat --session {shlex.quote(self.view.title)}")

    # ---- what commands use --------------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        return self.view.session_id

    @property
    def said(self) -> list[TurnView]:
        """The turns shown, without the system prompt."""
        return [turn for turn in self.view.turns if turn.role != "system"]

    def last_answer(self) -> TurnView:
        """The last turn, which must be an answer.

        Raises:
            Refusal: There is none.
        """
        if not self.said or self.said[-1].role != "assistant":
            raise Refusal("there is no answer yet")
        return self.said[-1]

    def note(self, text: str) -> None:
        """Prints a note on stderr."""
        console.print(without_controls(text), style="dim", markup=False, highlight=False, soft_wrap=not console.is_terminal)

    async def answer(self, use_case: Coroutine[Any, Any, None], begins: str = "") -> None:
        """Streams the answer of a use case; Ctrl-C stops it, and the tokens so far are kept.

        Args:
            use_case: A coroutine of the workbench that makes an answer.
            begins: The known beginning of the answer.

        Raises:
            Refusal: It was refused.
        """
        await self._stream(use_case, begins)
        last = self.said[-1] if self.said else None
        if last is not None and last.is_foreign:  # the path has another model's tokens
            self.note("another tokenizer made this conversation; it goes on as text")
            await self._stream(self.workbench.answers.open_as_text(self.id, last.node_id))
            last = self.said[-1]
        if last is None or last.role != "assistant":
            return
        stopped = last.run.finish[-1:].tolist() == [Finish.CANCELLED]
        if self._finish is Finish.NONE and not stopped:
            self.failed = True
            self.note(last.note or "the answer is incomplete")
            return
        self.note(self._ending(last))

    async def _stream(self, use_case: Coroutine[Any, Any, None], begins: str = "") -> None:
        self._finish = Finish.NONE
        self._wrapper = Wrapper(sys.stdout, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
        self._wrapper.write(begins)
        try:
            async with _stopping(lambda: self.workbench.answers.stop(self.id)):
                await use_case
        finally:
            self._status.stop()
            self._wrapper.end()
            self._wrapper = None

    def _ending(self, turn: TurnView) -> str:
        """The line under an answer."""
        own = int((turn.run.origin != Origin.TEMPLATE).sum())
        end = turn.note or self._finish.label or "stopped"
        parts = [f"{own:,} tokens", f"{end} (/continue goes on)" if turn.status is TurnStatus.PARTIAL else end]
        model = self.supervisor.running
        if model is not None and (rate := model.metrics().tokens_per_second):
            parts.append(f"{rate:.1f} tok/s")
        stats = turn.stats
        if stats is not None and stats.drafted is not None:
            parts.append(speculation(stats.drafted, stats.accepted or 0))
        return ", ".join(parts)

    def _hear(self, event: Event) -> None:
        if isinstance(event, SessionChanged) and event.view.session_id == self.id:
            self.view = event.view
        elif isinstance(event, TokensArrived) and self._wrapper is not None:
            self._status.stop()
            self._finish = Finish(int(event.run.finish[-1]))
            self._wrapper.write(event.run.answer)
        elif isinstance(event, TurnChanged) and self._wrapper is not None and console.is_terminal:
            turn = event.turn
            if turn.note and turn.status is TurnStatus.WAITING:
                self._status.update(turn.note)
                self._status.start()


def _utf8(text: str) -> str:
    """A message decoded as UTF-8.

    Raises:
        Refusal: Its bytes are not UTF-8.
    """
    try:
        return utf8(text)
    except UnicodeError as error:
        raise Refusal("that message was not sent: it is not UTF-8") from error


@asynccontextmanager
async def _stopping(stop: Any) -> AsyncIterator[None]:
    """Makes Ctrl-C call `stop` instead of raising KeyboardInterrupt."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


LONGEST_NUMBER = 18  # digits
SHOWN, NUMBERED = 3, 10  # alternatives per token in a list of tokens, and of a single token


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its arguments, its help and its function."""

    takes: str
    says: str
    run: Callable[[Chat, str], Awaitable[None]]


async def run_command(chat: Chat, line: str) -> None:
    """Runs a line that begins with a slash.

    Raises:
        Refusal: The command is unknown, or cannot be run; says what to do.
    """
    name, _, rest = line[1:].strip().partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        raise Refusal(f"there is no command /{name}; /help lists the commands (with a space in front it is sent as a message)")
    await command.run(chat, rest.strip())


async def _help(chat: Chat, rest: str) -> None:  # noqa: ARG001  # as all commands
    table = rows_table()
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
    await chat.new()
    if rest:
        await chat.workbench.sessions.rename(chat.id, rest)
        chat.view = await chat.workbench.sessions.open(chat.id)
    chat.note("a new session")


async def _model(chat: Chat, name: str) -> None:
    if not name:
        choices = await chat.workbench.models.list()
        print_table(rows_table(("*" if c.loaded else "", Text(c.source, style="bold"), Text(c.detail)) for c in choices))
        return
    supervisor = chat.supervisor
    # the connection belongs to the running model
    own = {option: value for option, value in supervisor.options.items() if option != "connection"}
    if not await on_thread(partial(can_chat, name, supervisor.backend, **own)):  # the running model stays loaded meanwhile
        raise Refusal(f"{name} has no chat template; still using {supervisor.source}")
    before, connection = supervisor.source, supervisor.options.get("connection")
    await supervisor.change(source=name, options={"connection": None})
    try:
        model = await chat.supervisor.model()
        if model.chat_template is None:
            raise Refusal(f"{name} has no chat template")
        await stored(chat.learn(model))
    except (RuntimeFault, Refusal):
        chat.note(f"back to {before}")
        await supervisor.change(source=before, options={"connection": connection})
        await chat.supervisor.model()
        raise
    chat.view = await chat.workbench.sessions.open(chat.id)
    chat.greet(model)


async def _system(chat: Chat, text: str) -> None:
    if not text:
        held = (await chat.workbench.setup.view(chat.id)).system
        click.echo(for_stdout(held) or "(no system prompt; the model's template may add one)")
        return
    there = bool(chat.said)
    await chat.workbench.setup.set_system(chat.id, "" if text == "none" else text)
    chat.view = await chat.workbench.sessions.open(chat.id)
    if chat.said:
        chat.note("on the branch that has this system prompt (/branch lists all)")
    else:
        chat.note("a new branch starts with this system prompt; the one before is kept (/branch)" if there else "set")


async def _set(chat: Chat, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if not name:
        table = rows_table()
        for option in (await chat.workbench.setup.view(chat.id)).options:
            held = chat.call.get(option.name)
            value = json.dumps(option.value if held is None else held, ensure_ascii=False, default=str)
            table.add_row(Text(option.name, style="bold"), Text(value), Text(option.source if held is None else "call"))
        print_table(table)
        return
    if not value.strip():
        raise Refusal(f"/set {name} needs a value, such as /set temperature 0.7 (null restores the default)")
    given_value = json_or_text(value.strip())
    await chat.workbench.setup.set_option(chat.id, name, given_value)
    for given in [each for each, value in chat.call.items() if each == name or _sets(each, value, name)]:
        del chat.call[given]  # options of the command line would take precedence
    chat.note(f"{name} is {json.dumps(given_value, ensure_ascii=False)} from the next answer on")


def _sets(given: str, value: object, name: str) -> bool:
    """Whether an option of the command line sets the option `name`, maybe under another library's name."""
    made = GenerationOptions.from_mapping({given: value})
    if hasattr(made.sampling, name):
        return getattr(made.sampling, name) is not None
    return bool(getattr(made, name) != getattr(GenerationOptions(), name))


async def _regenerate(chat: Chat, rest: str) -> None:  # noqa: ARG001  # as all commands
    await chat.answer(chat.workbench.answers.regenerate(chat.id, chat.last_answer().node_id))


async def _continue(chat: Chat, rest: str) -> None:  # noqa: ARG001  # as all commands
    await chat.answer(chat.workbench.answers.continue_turn(chat.id, chat.last_answer().node_id))


# ---- why ----------------------------------------------------------------------------------------------------------


def _own(turn: TurnView) -> tuple[int, TokenRun]:
    """The index in an answer's run of its first token after the template's, and the run from there on.

    Raises:
        Refusal: There is no such token.
    """
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
    decode = chat.workbench.services.vocabulary.bytes_of
    if start != end or len(run) == 1:
        few = _narrowed(run[start - 1 : end], SHOWN)
        print_table(token_table(few, decode, first=start))
        return
    record = run.record(start - 1)
    print_table(token_table(_narrowed(run[start - 1 : end], 0), decode, first=start))
    table = rows_table()
    for place, (token, logprob) in enumerate(list(zip(record.top_ids, record.top_logprobs, strict=True))[:NUMBERED], 1):
        mark = "*" if token == record.token_id else ""
        table.add_row(str(place), mark, Text(shown(decode(token).decode(errors="replace"))), probability(logprob))
    print_table(table)
    chat.note(f"/branch at {start} NUMBER goes on with one of these instead")


def _narrowed(run: TokenRun, count: int) -> TokenRun:
    return replace(run, top_ids=run.top_ids[:, :count], top_logprobs=run.top_logprobs[:, :count], stages=None)


def _number(text: str, most: int, what: str) -> int:
    """A number from 1 to `most`.

    Raises:
        Refusal: It is not a number, or out of range.
    """
    if not text.strip().isdecimal() or len(text) > LONGEST_NUMBER or not 1 <= int(text) <= most:
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
        chat.view = await chat.workbench.branches.select(chat.id, row.node_id)
        chat.note(f"on {row.name!r}; its last answer:")
        click.echo(for_stdout(content_of(chat.said[-1].run).strip()))


def _list_branches(chat: Chat) -> None:
    if not chat.view.branches:
        raise Refusal("nothing was said yet")
    table = rows_table()
    for number, row in enumerate(chat.view.branches, 1):
        name = Text("  " * row.depth).append(f"{one_line(row.before)} " if row.before else "", style="dim")
        name.append(one_line(row.name))
        table.add_row(str(number), "*" if row.current else "", name, "" if row.likely is None else f"{row.likely:.2f}")
    print_table(table)


async def _branch_at(chat: Chat, rest: str) -> None:
    turn = chat.last_answer()
    begin, run = _own(turn)
    first, _, wanted = rest.partition(" ")
    at = _number(first, len(run), "token of the last answer (/why numbers them)") - 1
    record, decode = run.record(at), chat.workbench.services.vocabulary.bytes_of
    others = [token for token in record.top_ids if token != record.token_id]
    if not wanted:
        choice = others[:1]
    elif wanted.strip().isdecimal():
        choice = [record.top_ids[_number(wanted, len(record.top_ids), "alternative") - 1]]
    else:
        choice = [t for t in others if decode(t).decode(errors="replace").strip() == wanted.strip()][:1]
    if not choice:
        raise Refusal(f"token {at + 1} has no such alternative; /why {at + 1} lists them")
    known = b"".join([*run[:at].token_bytes, decode(choice[0])]).decode(errors="ignore")  # half a character is left out
    await chat.answer(chat.workbench.answers.branch(chat.id, turn.node_id, begin + at, choice[0]), known)


async def _branch_turn(chat: Chat, rest: str) -> None:
    while chat.view.earlier:
        chat.view = await chat.workbench.sessions.show_earlier(chat.id)
    own = [turn for turn in chat.said if turn.role == "user"]
    number, _, text = rest.partition(" ")
    if not rest:
        for place, turn in enumerate(own, 1):
            click.echo(for_stdout(f"{place}  {' '.join(content_of(turn.run).split())}"))
        return
    turn = own[_number(number, len(own), "message of yours (/branch turn lists them)") - 1]
    if not text.strip():
        raise Refusal(f"write what to say in its place: /branch turn {number} TEXT")
    await chat.answer(chat.workbench.answers.send(chat.id, text.strip(), replaces=turn.node_id))


COMMANDS: Final = {
    "help": Command("", "this list", _help),
    "quit": Command("", "ends the chat, as Ctrl-D does", _quit),
    "new": Command("[TITLE]", "starts a new session", _new),
    "model": Command("[NAME]", "lists the installed models, or switches to another one", _model),
    "system": Command("[TEXT]", "shows the system prompt, or starts a branch with another one (none: without)", _system),
    "set": Command("[NAME VALUE]", "lists the sampling settings, or changes one: /set temperature 0.7", _set),
    "regenerate": Command("", "another answer to the last message", _regenerate),
    "continue": Command("", "continues an answer that was stopped or cut", _continue),
    "why": Command("[N | N-M]", "the tokens of the last answer, with their probabilities and alternatives", _why),
    "branch": Command(
        "[N | at TOKEN [OTHER] | turn [N TEXT]]",
        "lists the branches, switches to one, or starts one: from another token of the last answer (the most probable "
        "other one, a number from /why TOKEN or a word), or from another text for a message of yours",
        _branch,
    ),
}
ALIASES: Final = {"exit": "quit", "bye": "quit", "?": "help", "retry": "regenerate", "regen": "regenerate"}
KEYS: Final = {
    "Enter": "sends the message",
    "Alt-Enter, \\ Enter": 'another line; inside """ Enter does it too',
    "Up, Down": "earlier input",
    "Ctrl-C": "stops the answer; what was written so far is kept",
    "Ctrl-D": "ends the chat",
}
