"""`elsewise chat`: a session in the terminal that goes on until it is left."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import click

from app.cli.asking import Asked, Flags, asking
from app.cli.chat_input import Reader, piped, terminal
from app.cli.common import console, told_precision
from app.cli.printing import Wrapper, guessed
from app.cli.saved import Opened, check_stack, opened, session_called
from app.cli.settings import Settings
from app.workbench.naming import spoken_name
from app.workbench.path_tokens import content_of
from app.workbench.workbench import PRESET
from runtime import Finish, LanguageModel, Origin, RuntimeFault, TokenRun
from ui import Event, Refusal, SessionChanged, SessionView, TokensArrived, TurnChanged, TurnStatus, TurnView

NOT_IN_CHAT = {"raw": False, "batch": None, "alternatives": 10, "as_json": False, "sample_top_k": None}  # as of `ask`
RECAP = 400  # characters of the last answer of a session that is gone on with
EPILOG = """\b
Lines that begin with a slash are commands; /help lists them. Alt-Enter, or a backslash at the end of a line, begins another
line of the message, and so does Enter inside \\"\\"\\". Ctrl-C stops an answer, which is kept as far as it came; Ctrl-D leaves.

\b
Examples:
  elsewise chat
  elsewise chat --session colours --temperature 0.4
  printf 'Name a colour.\\nAnd another?\\n' | elsewise chat --session colours
"""


@click.command(epilog=EPILOG)
@asking
@click.pass_obj
def chat(settings: Settings, /, **given: Any) -> None:
    """Talks with a model, in a session that is saved as it goes; the model is loaded once."""
    flags: Flags = {**NOT_IN_CHAT, **given}  # type: ignore[typeddict-item]  # click gives the others
    asked = Asked.of(settings, flags, chats=True)
    if asyncio.run(_chat(settings, asked, flags["session"])):
        raise click.exceptions.Exit(1)


chat.params = [option for option in chat.params if option.name not in NOT_IN_CHAT]
for option in chat.params:
    if option.name == "max_tokens":
        assert isinstance(option, click.Option)
        option.show_default = str(PRESET.max_tokens)


async def _chat(settings: Settings, asked: Asked, title: str | None) -> bool:
    """The whole conversation; whether an answer failed of which nobody saw it."""
    instead = "close it, or use elsewise ask without --session"
    async with opened(settings.data, asked, PRESET, who="chat", instead=instead) as place:
        talk = Chat(place, asked)
        await talk.begin(title)
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        reader = terminal(settings.data.root / "chat_history") if at_terminal else piped()
        await talk.run(reader)
        talk.farewell()
        return talk.failed and not at_terminal


class Chat:
    """One conversation.

    Attributes:
        view: The session, as it was last told.
        failed: Whether an answer failed.
        over: Whether the conversation is to end.
    """

    def __init__(self, place: Opened, asked: Asked) -> None:
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
            click.UsageError: The command's options do not go with the session.
            click.ClickException: The model cannot chat.
            RuntimeFault: It cannot be loaded.
        """
        model = await self.load()
        if model.chat_template is None:
            raise click.ClickException(f"{model.info.name} has no chat template; give it one, such as --format plain")
        if title is None:
            self.view = await self.workbench.new_session()
        else:
            self.view = await self.workbench.open_session(await session_called(self.store, title))
        setup = await self.workbench.setup(self.id)
        check_stack(self.view.title, self._asked, setup)
        if self._asked.system is not None and self._asked.system != setup.system:
            if self.said:
                raise click.UsageError(
                    f"--system: the session {self.view.title!r} has another system prompt; leave out --system, "
                    "or begin anew in it with /system"
                )
            await self.workbench.set_system(self.id, self._asked.system)
        self.greet(model)

    async def run(self, reader: Reader) -> None:
        """Answers what is read until there is no more, or somebody leaves."""
        from app.cli.chat_commands import obey

        while not self.over and (text := await reader.read()) is not None:
            if not text.strip():
                continue
            try:
                if text.startswith("/"):
                    await obey(self, text)
                else:
                    await self.answer(self.workbench.send(self.id, text))
            except (Refusal, RuntimeFault, click.ClickException) as fault:
                self.failed = True
                self.note(fault.format_message() if isinstance(fault, click.ClickException) else str(fault))

    def greet(self, model: LanguageModel) -> None:
        """Says who answers, and where the conversation stands."""
        told = ", ".join(filter(None, (model.info.backend, told_precision(model), f"context {model.info.context_length:,}")))
        self.note(f"{spoken_name(model.info)} ({told}). /help lists the commands.")
        if self.said:
            turns = f"{len(self.said):,} turns" if len(self.said) > 1 else "1 turn"
            self.note(f"going on with {self.view.title!r}, {turns}")
            last = content_of(self.said[-1].run).strip()
            self.note(f"… {last[-RECAP:]}" if len(last) > RECAP else last)

    def farewell(self) -> None:
        """Says where the conversation is."""
        if self.said:
            self.note(f"saved as {self.view.title!r}: elsewise chat --session {_quoted(self.view.title)}")

    # ---- what commands use --------------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Of the session."""
        return self.view.session_id

    @property
    def said(self) -> list[TurnView]:
        """The turns that are shown, without the system prompt."""
        return [turn for turn in self.view.turns if turn.role != "system"]

    def last_answer(self) -> TurnView:
        """The model's turn at the end.

        Raises:
            Refusal: There is none.
        """
        if not self.said or self.said[-1].role != "assistant":
            raise Refusal("there is no answer yet")
        return self.said[-1]

    def note(self, text: str) -> None:
        """Says something beside the conversation, on stderr."""
        console.print(text, style="dim", markup=False, highlight=False, soft_wrap=not console.is_terminal)

    async def load(self) -> LanguageModel:
        """The model, which is loaded if it is not there. Ctrl-C leaves."""
        return await self.supervisor.model()

    async def answer(self, asking: Coroutine[Any, Any, None], begins: str = "") -> None:
        """Streams what a use case answers; Ctrl-C stops it, and what came is kept.

        Args:
            asking: The use case.
            begins: What the answer begins with, which is known already.

        Raises:
            Refusal: It was refused.
        """
        await self._stream(asking, begins)
        last = self.said[-1] if self.said else None
        if last is not None and last.is_foreign:  # what was said is cut into another model's tokens
            self.note("another tokenizer made this conversation; it goes on as text")
            await self._stream(self.workbench.open_as_text(self.id, last.node_id))
            last = self.said[-1]
        if last is None or last.role != "assistant":
            return
        stopped = last.run.finish[-1:].tolist() == [Finish.CANCELLED]
        if self._finish is Finish.NONE and not stopped:
            self.failed = True
            self.note(last.note or "the answer did not end")
            return
        self.note(self._ending(last))

    async def _stream(self, asking: Coroutine[Any, Any, None], begins: str = "") -> None:
        self._finish = Finish.NONE
        self._wrapper = Wrapper(sys.stdout, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
        self._wrapper.write(begins)
        try:
            async with _stopping(lambda: self.workbench.stop(self.id)):
                await asking
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
            parts.append(guessed(stats.drafted, stats.accepted or 0))
        return ", ".join(parts)

    def _hear(self, event: Event) -> None:
        if isinstance(event, SessionChanged) and event.view.session_id == self.id:
            self.view = event.view
        elif isinstance(event, TokensArrived) and self._wrapper is not None:
            self._status.stop()
            self._finish = Finish(int(event.run.finish[-1]))
            self._wrapper.write(_text(event.run))
        elif isinstance(event, TurnChanged) and event.turn.note and self._wrapper is not None and console.is_terminal:
            self._status.update(event.turn.note)
            self._status.start()


def _text(run: TokenRun) -> str:
    return "".join(text for text, end in zip(run.texts, run.by_eos.tolist(), strict=True) if not end)


def _quoted(title: str) -> str:
    import shlex

    return shlex.quote(title)


@asynccontextmanager
async def _stopping(stop: Any) -> AsyncIterator[None]:
    """Ctrl-C calls `stop` meanwhile, and ends nothing else."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
