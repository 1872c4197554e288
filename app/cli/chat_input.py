"""What is typed into `elsewise chat`: lines of a terminal with editing and history, or of a pipe."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

QUOTES = '"""'
PROMPT, CONTINUED = "> ", "… "


class Reader(Protocol):
    """Where messages come from."""

    async def read(self) -> str | None:
        """The next message; None where there is no more."""


def is_open(text: str) -> bool:
    """Whether a message goes on in the next line: after a backslash, or within quotes of three."""
    if text.startswith(QUOTES):
        return QUOTES not in text[len(QUOTES) :]
    return text.endswith("\\")


def message_of(text: str) -> str:
    """A whole message without what held its lines together."""
    if text.startswith(QUOTES):
        inside, _, behind = text[len(QUOTES) :].partition(QUOTES)
        return (inside + behind).strip("\n")
    return text.replace("\\\n", "\n").removesuffix("\\")


class Piped:
    """Lines of a stream: each is a message, or a part of one. The stream may be written to as answers come."""

    def __init__(self, stream: io.TextIOBase | Any) -> None:
        self._stream = stream

    async def read(self) -> str | None:
        """Blocks the loop, which has nothing else to do; Ctrl-C ends the wait."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = self._stream.readline()
            if not line:
                return None
            text = line.rstrip("\r\n")
            while is_open(text) and (line := self._stream.readline()):
                text += "\n" + line.rstrip("\r\n")
        finally:
            signal.signal(signal.SIGINT, before)
        return message_of(text)


def piped() -> Reader:
    """Standard input."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return Piped(sys.stdin)


class Terminal:
    """A line editor with history, colours and completion of commands."""

    def __init__(self, session: PromptSession[str]) -> None:
        self._session = session

    async def read(self) -> str | None:
        """Ctrl-C gives a line up, Ctrl-D ends the conversation."""
        while True:
            try:
                return message_of(await self._session.prompt_async())
            except KeyboardInterrupt:
                click.secho("(Ctrl-D or /quit leaves)", dim=True, err=True)
            except EOFError:
                return None


def terminal(history: Path) -> Reader:
    """The terminal that this process stands in.

    Args:
        history: The file of what was typed before; only its owner can read it.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.styles import Style

    from app.cli.chat_commands import COMMANDS

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
    return Terminal(
        PromptSession(
            message=[("class:prompt", PROMPT)],
            prompt_continuation=[("class:prompt", CONTINUED)],
            style=Style.from_dict({"prompt": "ansigreen bold"}),
            history=FileHistory(str(history)),
            completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
            complete_while_typing=False,
            key_bindings=keys,
            multiline=True,
        )
    )
