"""What a person can do, as the window asks for it (`ui.port.Workbench`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from app.supervisor import Supervisor
from app.workbench.answers import Answers, Start
from app.workbench.prompt import as_run, render_header, render_turn
from app.workbench.recorder import chunk
from app.workbench.session import EMPTY, OpenSession, content_of
from app.workbench.vocabulary import Vocabulary
from runtime import (
    EngineDiedError,
    Finish,
    GenerationOptions,
    LanguageModel,
    Origin,
    RuntimeFault,
    SamplingOptions,
    ShelfEntry,
    TokenRun,
    clean_text,
    list_models,
    texts_of,
)
from storage import NewNode, NodeRow, SessionStore, StoreError
from ui import (
    Composition,
    EngineState,
    Event,
    ModelChoice,
    Refusal,
    SessionChanged,
    SessionsChanged,
    SessionSummary,
    SessionView,
    StatusChanged,
    StatusView,
    Tier,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

TITLE_LENGTH = 60
PRESET = GenerationOptions(max_tokens=1024, sampling=SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05))
BUSY = "an answer is being written here; stop it first (Ctrl-.)"


class AppWorkbench:
    """Use cases over the session store and the engine process; all members belong to the window's loop.

    Args:
        store: The sessions.
        supervisor: The engine process.
        options: How answers are drawn.
    """

    def __init__(self, store: SessionStore, supervisor: Supervisor, options: GenerationOptions = PRESET) -> None:
        self._store = store
        self.supervisor = supervisor
        self._options = options
        self._listeners: list[Callable[[Event], None]] = []
        self._open: dict[int, OpenSession] = {}
        self._shown: OpenSession | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self.vocabulary = Vocabulary(store)
        self._answers = Answers(store, supervisor, self._tell, self._refresh_status)
        self.status = StatusView(EngineState.NONE)
        supervisor.subscribe(self._refresh_status)

    # ---- the window listens -------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Events go to `listener` from now on."""
        self._listeners.append(listener)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def warm_up(self) -> None:
        """Starts the engine in the background, so that the first answer need not wait for it."""
        task: asyncio.Task[object] = asyncio.create_task(self._warm_up(), name="warm up")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _warm_up(self) -> None:
        try:
            await self.vocabulary.learn(await self.supervisor.model())
        except RuntimeFault as fault:
            log.warning("the engine did not start: %s", fault)

    # ---- sessions -----------------------------------------------------------------------------------------------------

    async def sessions(self, query: str = "") -> Sequence[SessionSummary]:
        """Pinned first, then the latest."""
        rows = await stored(self._store.sessions(query))
        open_id = self._shown.id if self._shown else None
        return [
            SessionSummary(row.id, row.title, row.updated, row.branches, row.pinned, row.is_sample)
            for row in rows
            if row.branches or row.id == open_id
        ]

    async def open_session(self, session_id: int) -> SessionView:
        """Reads a session; no model is needed."""
        session = self._open.get(session_id)
        if session is None:
            session = OpenSession(await stored(self._store.load_session(session_id)))
            self._open[session_id] = session
        await self._load_path(session)
        await self.vocabulary.load()
        self._shown = session
        await self._find_warm(session)
        self._refresh_status()
        return session.view()

    async def new_session(self) -> SessionView:
        """An empty one."""
        session_id = await stored(self._store.create_session("New session"))
        view = await self.open_session(session_id)
        self._tell(SessionsChanged())
        return view

    async def rename_session(self, session_id: int, title: str) -> None:
        """Another title."""
        title = clean_text(title).strip()
        if not title:
            raise Refusal("a title needs at least one character")
        await stored(self._store.rename_session(session_id, title))
        if session_id in self._open:
            self._open[session_id].title = title
            self._tell(SessionChanged(self._open[session_id].view()))
        self._tell(SessionsChanged())

    async def trash_session(self, session_id: int) -> None:
        """Into the trash; an answer that is being written there is stopped and kept."""
        self.stop(session_id)
        await stored(self._store.trash_session(session_id))
        self._tell(SessionsChanged())

    async def restore_session(self, session_id: int) -> None:
        """Back out of the trash."""
        await stored(self._store.restore_session(session_id))
        self._tell(SessionsChanged())

    async def select(self, session_id: int, node_id: int) -> SessionView:
        """Shows the path through a node."""
        session = self._idle(session_id)
        if node_id not in session.tree.nodes:
            raise Refusal("that branch is not part of this session any more")
        shown = [segment.node.id for segment in session.tree.path(session.tip)]
        await self._move(session, session.tree.leaf(node_id, shown))
        await self._find_warm(session)
        view = session.view()
        self._tell(SessionChanged(view))
        self._refresh_status()
        return view

    # ---- answers ------------------------------------------------------------------------------------------------------

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn (beside `replaces`, an earlier version of it), then streams an answer."""
        session = self._idle(session_id)
        text = clean_text(text)
        if not text.strip():
            raise Refusal("write a message first")
        if session.is_sample:
            raise Refusal("the sample session is read-only; start a new session (Ctrl-N)")
        first = session.tip is None
        parent, at = await self._place_of_user_turn(session, replaces)
        user = await self._add(session, NewNode(session.id, parent, "user", text=text, at_token=at))
        answer = await self._add(session, NewNode(session.id, user.id, "assistant", status="open"))
        if first:
            await self.rename_session(session_id, " ".join(text.split())[:TITLE_LENGTH])
        self._tell(SessionsChanged())
        await self._answer(session, answer, self._after_user)

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """A sibling that has another token at `index`, and goes on from there."""
        session = self._idle(session_id)
        if session.is_sample:
            raise Refusal("the sample session is read-only; start a new session (Ctrl-N)")
        node, offset = session.locate(node_id, index)
        if node.role != "assistant":
            raise Refusal("this is your own text; edit the message to change it")
        run = session.runs[node.id]
        if int(run.origin[offset]) == Origin.TEMPLATE:
            raise Refusal("this token belongs to the template, not to the answer")
        picked = pick(run, offset, token_id, self.vocabulary.bytes_of(token_id))
        parent, at, byte = node.id, offset, len(content_of(run[:offset]).encode())
        if offset == 0 and not node.turn_start and node.parent_id is not None:
            parent, at, byte = node.parent_id, node.at_token or 0, node.at_byte or 0
        new = NewNode(
            session.id, parent, "assistant", at_token=at, at_byte=byte, turn_start=False, status="open", text=picked.text
        )
        await self._answer(session, await self._add(session, new), partial(self._from, picked))

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Another answer beside the model's turn."""
        session = self._idle(session_id)
        opening = session.tree.opening(session.tree.nodes[node_id])
        if opening.role != "assistant":
            raise Refusal("only the model's turns can be regenerated; edit your own")
        if session.is_sample:
            raise Refusal("the sample session is read-only; start a new session (Ctrl-N)")
        run = session.runs.get(opening.id, EMPTY)
        header = run[: leading_template(run)]
        new = NewNode(session.id, opening.parent_id, "assistant", at_token=opening.at_token, status="open")
        prepare = partial(self._from, header) if len(header) else self._after_user
        await self._answer(session, await self._add(session, new), prepare)

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Goes on with an answer that was stopped."""
        session = self._idle(session_id)
        node = session.tree.nodes[node_id]
        run = session.runs.get(node_id, EMPTY)
        if node.role != "assistant" or not len(run):
            raise Refusal("there is nothing to go on from; regenerate the answer instead")
        if int(run.finish[-1]) == Finish.EOS:
            raise Refusal("the answer is complete; the model ended it itself")
        new = NewNode(session.id, node_id, "assistant", turn_start=False, status="open")
        await self._answer(session, await self._add(session, new), partial(self._from, EMPTY))

    def stop(self, session_id: int) -> None:
        """What arrived is kept."""
        self._answers.stop(session_id)

    async def _answer(self, session: OpenSession, node: NodeRow, prepare: Callable[..., object]) -> None:
        """Streams into an open node that has just become the tip."""
        try:
            await self._answers.run(session, node.id, self._options, partial(prepare, session, node))  # type: ignore[arg-type]  # partials of the coroutines below
        except StoreError as fault:
            raise Refusal(f"{fault} (what the model wrote is on the screen; copy it)") from fault
        finally:
            tree = await stored(self._store.load_session(session.id))
            for each in tree.nodes:
                session.tree.put(each)
            await self._find_warm(session)
            self._tell(SessionChanged(session.view()))
            self._tell(SessionsChanged())
            self._refresh_status()

    async def _from(self, known: TokenRun, session: OpenSession, node: NodeRow, model: LanguageModel) -> Start:
        """The node begins with tokens that are known already; turns before it may still need theirs."""
        await self._tokenise(session, model, before=node.id)
        return Start(known)

    async def _after_user(self, session: OpenSession, node: NodeRow, model: LanguageModel) -> Start:
        """The node begins with the header the template puts before an answer."""
        header = await self._tokenise(session, model, before=node.id)
        if header is None:
            turns = session.tree.turns(node.parent_id)
            header = await render_header(model, session.messages(turns))
        return Start(as_run(model, header, ""))

    async def _tokenise(self, session: OpenSession, model: LanguageModel, before: int) -> list[int] | None:
        """Gives the user turns of the path their ids, where no model has seen them yet; the last one's header."""
        await self.vocabulary.learn(model)
        header: list[int] | None = None
        turns = [turn for turn in session.tree.turns(before) if turn.tip.id != before]
        for count, turn in enumerate(turns, 1):
            if turn.role != "user" or len(session.runs.get(turn.tip.id, EMPTY)):
                continue
            parents = session.tree.path(turn.tip.id)[:-1]
            held = session.path_ids(parents)
            ids = await render_turn(model, held, session.messages(turns[:count]))
            if ids.system and parents:
                await self._keep_ids(session, model, parents[0].node, as_run(model, ids.system, parents[0].node.text))
            await self._keep_ids(session, model, turn.tip, as_run(model, ids.user, turn.tip.text))
            header = ids.header
        return header

    async def _keep_ids(self, session: OpenSession, model: LanguageModel, node: NodeRow, run: TokenRun) -> None:
        """The ids of a saved turn: on the disk before the model sees them."""
        session.runs[node.id] = run
        await stored(self._store.append_chunk(node.id, chunk(run, model.info.kv_fingerprint)))

    async def _place_of_user_turn(self, session: OpenSession, replaces: int | None) -> tuple[int | None, int | None]:
        """Where a new user turn hangs: its parent and the token at which it leaves it."""
        if replaces is not None:
            opening = session.tree.opening(session.tree.nodes[replaces])
            return opening.parent_id, opening.at_token
        tip = session.tree.nodes.get(session.tip) if session.tip is not None else None
        if tip is None:
            root = await self._add(session, NewNode(session.id, None, "system"))
            return root.id, None
        if tip.role == "assistant" and not len(session.runs.get(tip.id, EMPTY)) and tip.turn_start:
            return tip.parent_id, tip.at_token  # an answer that never began is passed over
        return tip.id, None

    async def _add(self, session: OpenSession, node: NewNode) -> NodeRow:
        """Adds a node on the disk and in the open tree, and makes it the tip."""
        node_id = await stored(self._store.add_node(node, current=True))
        row = NodeRow(
            id=node_id,
            session_id=node.session_id,
            parent_id=node.parent_id,
            at_token=node.at_token,
            at_byte=node.at_byte,
            role=node.role,
            turn_start=node.turn_start,
            text=node.text,
            status=node.status,
            finish_reason=None,
            token_count=0,
            stats={},
            seq=len(session.tree.nodes) + 1,
            kv_fingerprint=None,
        )
        session.tree.put(row)
        session.tip = node_id
        return row

    # ---- the rest -----------------------------------------------------------------------------------------------------

    async def compose(self, session_id: int, text: str) -> Composition:
        """Tokens and context of a draft; no forward. Counted once the engine runs."""
        session = self._open.get(session_id)
        used = sum(len(turn.run) for turn in session.turn_views()) if session else 0
        model = self.supervisor.running
        if model is None:
            return Composition(None, None, used, None)
        tokens = len(await model.tokenize_async(clean_text(text))) if text else 0
        return Composition(tokens, None, used + tokens, model.info.context_length)

    async def models(self) -> Sequence[ModelChoice]:
        """What is on the shelf."""
        entries = await asyncio.to_thread(list_models)
        return [ModelChoice(e.name, e.title, detail_of(e), e.name == self.supervisor.source) for e in entries]

    async def choose_model(self, source: str) -> None:
        """From the next request on."""
        if self._answers.running:
            raise Refusal(BUSY)
        await self.supervisor.change(source)
        self.warm_up()

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:  # noqa: ARG002  # one vocabulary so far
        """Bytes of any token, without the engine."""
        return [self.vocabulary.bytes_of(token) for token in token_ids]

    async def close(self) -> None:
        """Text first: streams are stopped and written, then the engine ends, then the store."""
        for session_id in list(self._answers.running):
            self._answers.stop(session_id)
        await self._answers.ended()
        for task in list(self._tasks):
            task.cancel()
        await self.supervisor.close()
        await self._store.close()

    def _idle(self, session_id: int) -> OpenSession:
        session = self._open.get(session_id)
        if session is None:
            raise Refusal("that session is not open")
        if session_id in self._answers.running:
            raise Refusal(BUSY)
        return session

    async def _move(self, session: OpenSession, tip: int) -> None:
        session.tip = tip
        await stored(self._store.set_current(session.id, tip))
        await self._load_path(session)

    async def _load_path(self, session: OpenSession) -> None:
        missing = session.missing()
        if missing:
            session.add_tokens(await stored(self._store.load_tokens(missing)))

    async def _find_warm(self, session: OpenSession) -> None:
        """How much of the path the engine holds."""
        model, session.warm = self.supervisor.running, 0
        ids = session.path_ids(session.tree.path(session.tip))
        if model is None or not ids or len(ids) > model.info.context_length:
            return
        try:
            session.warm = (await model.prefix_match_async(ids)).tokens
        except EngineDiedError:
            await self.supervisor.died()
        except RuntimeFault as fault:
            log.info("no warm prefix: %s", fault)

    def _refresh_status(self) -> None:
        model, session = self.supervisor.running, self._shown
        status = StatusView(self.supervisor.state, self.supervisor.reason)
        if model is not None:
            metrics = model.metrics()
            status = replace(status, kv_bytes=metrics.kv_bytes, kv_budget=metrics.kv_budget)
        if session is not None:
            views = session.turn_views()
            tiers = {tier: sum(view.tier is tier for view in views) for tier in Tier}
            last = next((view.stats for view in reversed(views) if view.stats), None)
            status = replace(status, tiers=tiers)
            if last is not None:
                status = replace(
                    status,
                    tokens_per_second=last.tokens_per_second,
                    first_token_seconds=last.first_token_seconds,
                    reused=last.reused,
                    computed=last.computed,
                )
        self.status = status
        self._tell(StatusChanged(status))


async def stored(work: Coroutine[Any, Any, T]) -> T:
    """What the store answers; its refusals as ours."""
    try:
        return await work
    except StoreError as fault:
        raise Refusal(str(fault)) from fault


def pick(run: TokenRun, offset: int, token_id: int, token_bytes: bytes) -> TokenRun:
    """The token that replaces row `offset`: same distribution, its own logprob and rank from the top-k. No forward."""
    row = run[offset : offset + 1]
    place = np.flatnonzero(row.top_ids[0] == token_id)
    known = bool(place.size)
    logprob = row.top_logprobs[0, place[0]] if known else np.float32(np.nan)
    rank = 1 + int((row.top_logprobs[0] > logprob).sum()) if known else 0
    return replace(
        row,
        ids=np.array([token_id], np.int32),
        token_bytes=(token_bytes,),
        texts=texts_of([token_bytes]),
        logprob=np.array([logprob], np.float32),
        rank=np.array([rank], np.int32),
        origin=np.array([int(Origin.PICKED)], np.uint8),
        finish=np.zeros(1, np.uint8),
        draw=np.full(1, np.nan, np.float32),
    )


def leading_template(run: TokenRun) -> int:
    """How many tokens at the beginning are the template's."""
    own = np.flatnonzero(run.origin != int(Origin.TEMPLATE))
    return int(own[0]) if own.size else len(run)


def detail_of(entry: ShelfEntry) -> str:
    """A model's size and format in a few words."""
    parameters = f"{entry.parameters / 1e6:,.0f} M parameters · " if entry.parameters else ""
    return entry.problem or f"{parameters}{entry.bytes / 1e6:,.0f} MB · {entry.format}"
