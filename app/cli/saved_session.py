"""Opens saved sessions for commands, with the use cases of the window, and asks in one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import click

from app.cli.common import locked
from app.cli.options import PRESET, AnswerOptions, load_model, precision_note, with_token_ids
from app.paths import DataFolder
from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from app.workbench.answers.provenance import MADE
from app.workbench.models.settings import back_up, blocks_in, disk_budget
from app.workbench.setup.values import options_with_sources, stored_sources
from runtime import Finish, GenerationOptions, LanguageModel, TokenRun, clean_text
from storage import SessionStore, StoreError
from ui import Event, Refusal, SessionSetup, TokensArrived

Decode = Callable[[int], bytes]
T = TypeVar("T")


class Saved(NamedTuple):
    """The provenance of an answer in a session."""

    seed: int  # the command's, else the session's, else a fresh one
    options: dict[str, Any]  # every option, with its source
    guesses: tuple[int, int] | None  # drafted and accepted tokens; None without speculation
    model: str
    backend: str
    precision: str = ""  # see `precision_note`
    rate: float | None = None  # tokens per second


class Opened(NamedTuple):
    """The sessions of a data folder, which only this process writes, and the use cases on them."""

    store: SessionStore
    supervisor: Supervisor
    workbench: AppWorkbench
    call: dict[str, Any]  # the command line's options, which take precedence over sessions'; may be changed


@asynccontextmanager
async def opened(
    data: DataFolder, asked: AnswerOptions, preset: GenerationOptions, *, holder: str, instead: str
) -> AsyncIterator[Opened]:
    """Opens the sessions, and saves and closes everything at the end. The model is loaded at its first use.

    Args:
        data: The data folder.
        asked: The command's options.
        preset: Defaults.
        holder: The name shown to other processes.
        instead: Advice if the folder is in use.

    Raises:
        click.ClickException: Another process writes into the data folder, or an answer could not be saved at the end; says
            where its text is.
    """
    with locked(data, holder, instead):
        store = SessionStore.open(data.sessions)
        blocks = blocks_in(data, await disk_budget(store))
        supervisor = Supervisor(asked.model, asked.backend, start=_in_process, **asked.load, blocks=blocks)
        call = dict(asked.call)
        workbench = AppWorkbench(Services(store, supervisor, preset, call))
        try:
            if asked.naming:  # tokens given by their text: only the model knows their ids
                model = await supervisor.model()
                call.update(with_token_ids(asked.naming, await model.byte_vocab_async()))
            yield Opened(store, supervisor, workbench, call)
            await back_up(store)
        finally:
            await workbench.close()
            if workbench.services.unsaved:  # replaces any other exception
                raise click.ClickException("; ".join(workbench.services.unsaved))


async def session_called(store: SessionStore, title: str) -> int:
    """The id of the session with this title, the last changed of several, or of a new one.

    Raises:
        click.UsageError: The title is empty.
    """
    title = clean_text(title).strip()
    if not title:
        raise click.UsageError("--session needs a title of at least one character")
    rows = [row for row in await store.sessions() if row.title == title and not row.is_sample]
    return max(rows, key=lambda row: row.updated).id if rows else await store.create_session(title)


async def ask_saved(
    data: DataFolder,
    title: str,
    text: str,
    asked: AnswerOptions,
    on_run: Callable[[TokenRun, Decode], None],
) -> Saved:
    """Sends `text` in the session `title`, creating it if necessary, and streams the answer to `on_run`.

    Raises:
        click.ClickException: Another process writes into the data folder, or the answer failed.
        click.UsageError: Adapters are given, and the session has its own.
    """
    preset = GenerationOptions.from_mapping(PRESET)
    instead = "close it, or ask without --session"
    async with opened(data, asked, preset, holder="ask --session", instead=instead) as (store, supervisor, workbench, _):
        saved = await _send(workbench, store, title, text, asked, on_run)
        model = supervisor.running
        if model is None:
            return saved
        return saved._replace(precision=precision_note(model), rate=model.metrics().tokens_per_second)


async def _send(
    workbench: AppWorkbench,
    store: SessionStore,
    title: str,
    text: str,
    asked: AnswerOptions,
    on_run: Callable[[TokenRun, Decode], None],
) -> Saved:
    session_id = await session_called(store, title)
    finish = Finish.NONE

    def listen(event: Event) -> None:
        nonlocal finish
        if isinstance(event, TokensArrived):
            finish = Finish(int(event.run.finish[-1]))
            on_run(event.run, workbench.services.vocabulary.bytes_of)

    await workbench.sessions.open(session_id)
    check_stack(title, asked, await workbench.setup.view(session_id))
    workbench.subscribe(listen)
    try:
        await workbench.answers.send(session_id, text)
    except Refusal as refusal:
        if isinstance(fault := refusal.__cause__, StoreError):  # unlike a window, a command does not save the rest later
            words = f"{fault}. The answer ended there; what had arrived of it is in the session {title!r}"
            raise click.ClickException(words) from fault
        raise click.ClickException(str(refusal)) from refusal
    last = (await workbench.sessions.open(session_id)).turns[-1]
    if finish is Finish.NONE:
        if last.needs_model:  # raises the load fault, which names a command; `last.note` is for the window
            await workbench.services.supervisor.model()
        raise click.ClickException(last.note or "the answer is incomplete")
    nodes = (await store.load_session(session_id)).nodes
    stats = next(node.stats for node in nodes if node.id == last.node_id)
    made = stats.get(MADE) or {}
    guesses = (stats["drafted"], stats["accepted"]) if "drafted" in stats else None
    options = options_with_sources(made.get("options") or {}, stored_sources(made))
    return Saved(stats["seed"], options, guesses, made.get("model", ""), made.get("backend", ""))


def check_stack(title: str, asked: AnswerOptions, setup: SessionSetup) -> None:
    """Refuses adapters of the command if the session has its own, which take precedence.

    Raises:
        click.UsageError: Both have adapters.
    """
    if setup.adapters and "adapters" in asked.load:
        uses = ", ".join(f"{line.choice.name} × {line.choice.scale:g}" for line in setup.adapters)
        raise click.UsageError(
            f"--adapter: the session {title!r} has a stack of its own ({uses}); leave out --adapter, "
            "take them off in the window, or ask in another session"
        )


async def _in_process(
    source: str,
    backend: str,
    *,
    on_progress: object,  # noqa: ARG001  # unused: `load_model` shows its own progress
    **options: Any,
) -> LanguageModel:
    return await on_thread(partial(load_model, source, backend, **options))


async def on_thread(work: Callable[[], T]) -> T:
    """Calls `work` on a daemon thread, which Ctrl-C does not wait for, unlike an executor's."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as fault:  # noqa: BLE001  # handed to the waiting task
            done.set_exception(fault)

    threading.Thread(target=run, name="elsewise-load", daemon=True).start()
    return await asyncio.wrap_future(done)
