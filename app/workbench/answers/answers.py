"""The commands that start an answer (send, branch, regenerate, continue), and answers that a person writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from app.supervisor import Supervisor
from app.workbench.answers.answer import Answer, Given, RunningAnswers, sibling_node
from app.workbench.answers.provenance import Repeat, stack_made_with
from app.workbench.answers.provenance_text import how_made, refusal
from app.workbench.answers.resolve_options import Continued
from app.workbench.answers.streaming import Prepare, Streaming
from app.workbench.prompt.prompt import Tokeniser, check_tokens, typed_run
from app.workbench.prompt.recorder import chunk
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import GONE, check_has, loaded_model, refusing, stored
from app.workbench.sessions.copying import Copies, begin_with
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.sessions.titles import title_from_model, title_of
from app.workbench.setup.beginning import AS_TEXT
from app.workbench.setup.session_adapters import Adapters
from app.workbench.tree.runs import EMPTY, began, content_of, leading_template, pick
from app.workbench.tree.session import UNTITLED, WholeSession
from app.workbench.windows import Windows
from runtime import EngineDiedError, Finish, InvalidRequestError, LanguageModel, RuntimeFault, TokenRun, clean_text, fresh_seed
from storage import NewNode, NodeRow, StoreError
from ui import BUSY, Made, OnTransfer, Refusal, SessionBegun, SessionChanged, SessionsChanged, translate

EDITED: Final = "edited"  # the finish reason of an answer that a person wrote


@dataclass(eq=False, repr=False)
class Answers:
    """The use cases that make an answer (`ui.port.AnswerCommands`); each returns when the answer has ended."""

    _supervisor: Supervisor  # knows the model that runs
    _sessions: OpenSessions  # the open sessions
    _adapters: Adapters  # in the engine
    _copies: Copies  # of the sample, which is never changed
    _running: RunningAnswers
    _streaming: Streaming  # streams one answer
    _tokeniser: Tokeniser  # text to ids
    _vocabulary: Vocabulary  # bytes of alternatives
    _windows: Windows  # show the changes
    _reading: dict[int, asyncio.Task[WholeSession]] = field(
        default_factory=dict, init=False
    )  # of sessions to score; `stop` cancels it
    # the last call of `tokenise` or `write`: model fingerprint, text and tokens
    _words: tuple[tuple[str, str], asyncio.Task[TokenRun]] | None = field(default=None, init=False)

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        """Saves the user's turn (as another version of the turn `replaces`), then streams an answer.

        If `replaces` is an answer, the text becomes another version of it, and nothing is streamed.
        """
        session = await self._sessions.whole(session_id, replaces)
        if replaces is not None and session.role_of(replaces) == "assistant":
            await self._edit_answer(session, replaces, text)
            return
        text = _as_stored(text)
        if not text.strip():
            raise Refusal(translate("Workbench", "write a message first"))
        if replaces is not None and session.tree.opening(self._node(session, replaces)).role != "user":
            raise Refusal(translate("Workbench", "this turn cannot be edited"))
        target = await self._copies.target(session)
        session, replaces = target.session, target.of(replaces)
        async with self._running.begin(session) as answer:
            failed = None if session.overflowed(session.tip) else session.tip
            parent, at = session.place(replaces)
            if parent is None and session.tip is None:
                parent = (await self._sessions.add(session, NewNode(session.id, None, "system"))).id
            user = await self._sessions.add(session, NewNode(session.id, parent, "user", text=text, at_token=at))
            node = await self._sessions.add(session, NewNode(session.id, user.id, "assistant", status="open"))
            await self._sessions.drop_failed(session, failed)
            named = session.title == UNTITLED
            if named:
                await self._sessions.rename(session.id, title_of(text))
            self._windows.tell(SessionsChanged())
            await self._stream(answer, node, partial(self._tokeniser.after_user, session, node))
        if named and session.title == title_of(text):
            self._windows.tell(SessionBegun(session.id))

    async def answer_call(self, session_id: int, node_id: int, results: Sequence[str]) -> None:
        """Saves the results of an answer's tool calls, one tool turn each, then streams an answer to them."""
        session = await self._sessions.whole(session_id, node_id)
        results = [_as_stored(text) for text in results]
        if not results or not all(text.strip() for text in results):
            raise Refusal(translate("Workbench", "write the result first; for a call that failed, write its error"))
        node = self._node(session, node_id)
        calls = next((turn.calls for turn in session.turn_views() if turn.node_id == node_id), ())
        if node.role != "assistant" or not calls:
            raise Refusal(translate("Workbench", "there is no open tool call here"))
        if len(results) != len(calls):
            raise Refusal(
                translate("Workbench", "{0} calls were made and {1} results were given; each call needs one").format(
                    len(calls), len(results)
                )
            )
        target = await self._copies.target(session)
        session, parent = target.session, target.of(node_id)
        async with self._running.begin(session) as answer:
            for text in results:
                parent = (await self._sessions.add(session, NewNode(session.id, parent, "tool", text=text))).id
            reply = await self._sessions.add(session, NewNode(session.id, parent, "assistant", status="open"))
            self._windows.tell(SessionsChanged())
            await self._stream(answer, reply, partial(self._tokeniser.after_user, session, reply))

    async def _answer_last(self, session: WholeSession) -> None:
        """Streams an answer if the path ends with a question or a tool result."""
        last = session.tree.nodes.get(session.tip) if session.tip is not None else None
        if last is None or last.role not in ("user", "tool"):
            return
        async with self._running.begin(session) as answer:
            reply = await self._sessions.add(session, NewNode(session.id, last.id, "assistant", status="open"))
            await self._stream(answer, reply, partial(self._tokeniser.after_user, session, reply))

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """Adds a sibling with another token at `index`, and streams from there."""
        session = await self._sessions.whole(session_id, node_id)
        model = self._supervisor.running
        check_has(model, "branch")
        if model is not None:  # the loaded vocabulary may belong to another model
            async with refusing(self._supervisor, model):
                await stored(self._vocabulary.learn(model))
                check_tokens(model, session, session.tree.path(node_id))
        if token_id < 0:
            raise Refusal(translate("Workbench", "there is no token {0}").format(token_id))
        new = sibling_node(session, node_id, index)
        place = session.locate(node_id, index)
        assert place is not None  # `sibling_node` refuses otherwise
        node, offset = place
        picked = pick(session.runs[node.id], offset, token_id, self._vocabulary.bytes_of(token_id))
        new = replace(new, text=picked.text)
        target = await self._copies.target(session)
        async with self._running.begin(target.session) as answer:
            await self._go_on(answer, target.place(new), Given(picked, node.kv_fingerprint))

    async def write(self, session_id: int, node_id: int, index: int, text: str) -> None:
        """Adds a sibling with these words from `index` on, and streams from there."""
        session = await self._sessions.whole(session_id, node_id)
        check_has(self._supervisor.running, "branch")
        new = sibling_node(session, node_id, index)
        text = _as_stored(text)
        if not text:
            raise Refusal(translate("Workbench", "write what the answer should say from here on"))
        self._running.check_idle(session_id)
        model = await loaded_model(self._supervisor)
        async with refusing(self._supervisor, model):
            check_tokens(model, session, session.tree.path(node_id))
            adapted = await self._adapters.adapted(session, model)
            given = Given(await self._tokens_of(model, text), adapted.fingerprint)
        target = await self._copies.target(session)
        async with self._running.begin(target.session) as answer:
            await self._go_on(answer, target.place(replace(new, text=text)), given)

    async def tokenise(self, text: str) -> None:
        """Tokenises words ahead of `write`, so that the answer need not wait for it."""
        model = self._supervisor.running
        if model is not None and model.has("kv"):  # text that was not sent stays on this machine
            try:
                await self._tokens_of(model, _as_stored(text))
            except EngineDiedError:
                await self._supervisor.died(model)
            except RuntimeFault:
                pass  # `write` reports it

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Streams another version of an answer, always with a fresh seed."""
        session = await self._sessions.whole(session_id, node_id)
        opening = session.tree.opening(self._node(session, node_id))
        if opening.role != "assistant":
            raise Refusal(translate("Workbench", "only the model's turns can be regenerated; edit your own"))
        run = session.runs.get(opening.id, EMPTY)
        header = run[: leading_template(run)]
        target = await self._copies.target(session)
        new = target.place(NewNode(session.id, opening.parent_id, "assistant", at_token=opening.at_token, status="open"))
        session, failed = target.session, target.of(node_id)
        async with self._running.begin(session) as answer:
            answer.seed = fresh_seed()
            if len(header):
                await self._go_on(answer, new, Given(header, opening.kv_fingerprint), instead_of=failed)
            else:
                node = await self._sessions.add(session, new)
                await self._sessions.drop_failed(session, failed)
                await self._stream(answer, node, partial(self._tokeniser.after_user, session, node))

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """Repeats an answer as another version, with the same options, seed and model."""
        session = await self._sessions.whole(session_id, node_id)
        node = self._node(session, node_id)
        if node.role != "assistant":
            raise Refusal(translate("Workbench", "only the model's turns can be regenerated; edit your own"))
        self._running.check_idle(session_id)
        session.check_sound(session.tree.path(node_id))
        if why := refusal(node):
            raise Refusal(why)
        if why := refusal(node, await loaded_model(self._supervisor)):
            raise Refusal(why)
        run = session.runs.get(node_id, EMPTY)
        try:
            repeat = Repeat.read(node, run)
        except InvalidRequestError as fault:
            raise Refusal(str(fault)) from fault
        await self._adapters.require(await loaded_model(self._supervisor), stack_made_with(repeat.made) or ())
        known = run[: len(run) - len(repeat.ids)]  # the header, or a token that was picked
        new = NewNode(
            session.id, node.parent_id, "assistant", at_token=node.at_token, at_byte=node.at_byte, turn_start=node.turn_start,
            status="open", text=content_of(known),
        )  # fmt: skip
        target = await self._copies.target(session)
        of = target.of(node_id)
        async with self._running.begin(target.session) as answer:
            answer.repeats = repeat if of is None else replace(repeat, of=of)
            await self._go_on(answer, target.place(new), Given(known, node.kv_fingerprint))

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Continues a stopped answer with its own options (see `Continued.under`)."""
        session = await self._sessions.whole(session_id, node_id)
        node = self._node(session, node_id)
        run = session.runs.get(node_id, EMPTY)
        if node.role == "assistant" and not len(run) and node.text:  # text that was never tokenised
            run = await self._cut(session, node)
        if node.role != "assistant" or not began(run):
            raise Refusal(translate("Workbench", "there is nothing to continue; regenerate the answer instead"))
        if Finish(int(run.finish[-1])).by_eos:
            raise Refusal(translate("Workbench", "the answer is complete; the model ended it itself"))
        new = NewNode(session.id, node_id, "assistant", turn_start=False, status="open")
        target = await self._copies.target(session)
        async with self._running.begin(target.session) as answer:
            answer.continues = Continued.read(session.tree, node)
            await self._go_on(answer, target.place(new), Given(EMPTY, session.tree.nodes[node_id].kv_fingerprint))

    async def score(self, session_id: int, progress: OnTransfer) -> int:
        """Scores the tokens of the path that have no numbers, text first tokenised; returns how many were scored."""
        if session_id in self._reading:
            raise Refusal(translate("Workbench", BUSY))
        reading = self._reading[session_id] = asyncio.create_task(self._sessions.whole(session_id), name="read what to score")
        try:
            session = await reading
            if session_id not in self._reading:  # stopped when it had just been read
                raise asyncio.CancelledError
        finally:
            if self._reading.get(session_id) is reading:
                del self._reading[session_id]
        if session.tip is None:
            raise Refusal(translate("Workbench", "there are no messages here yet"))
        before = _scored(session)
        async with self._running.begin(session) as answer:
            try:
                await answer.work(self._score(session, progress), f"score {session_id}")
            finally:
                await self._sessions.refresh(session)
                self._windows.tell(SessionChanged(session.view()))
                self._windows.refresh_status()
            assert answer.task is not None
            answer.task.result()  # raises the task's exception
        return _scored(session) - before

    async def _score(self, session: WholeSession, progress: OnTransfer) -> None:
        assert session.tip is not None
        session.check_sound(session.tree.path(session.tip))
        model = await loaded_model(self._supervisor)
        check_has(model, "score")
        async with refusing(self._supervisor, model):
            check_tokens(model, session, session.tree.path(session.tip))
            adapted = await self._adapters.adapted(session, model)
            await stored(self._tokeniser.along(session, adapted, session.tip))
            await stored(self._streaming.score(session, adapted, lambda now: progress(now.done, now.total)))

    async def _cut(self, session: WholeSession, node: NodeRow) -> TokenRun:
        """Tokenises an answer stored as text, and saves its tokens."""
        async with self._running.begin(session):
            session.check_sound(session.tree.path(node.id))
            model = await loaded_model(self._supervisor)
            async with refusing(self._supervisor, model):
                check_tokens(model, session, session.tree.path(node.id))
                await stored(self._tokeniser.own_words(session, await self._adapters.adapted(session, model), node))
            await self._sessions.refresh(session)
        return session.runs[node.id]

    async def _edit_answer(self, session: WholeSession, node_id: int, text: str) -> None:
        """Saves another version of an answer, written by a person; nothing is streamed.

        The text is saved first. It is tokenised at once if a model runs, else when a model continues from it.
        """
        opening = session.tree.opening(self._node(session, node_id))
        text = _as_stored(text)
        if not text.strip():
            raise Refusal(translate("Workbench", "write what the answer should say; to get another one, regenerate it"))
        target = await self._copies.target(session)
        new = NewNode(
            session.id, opening.parent_id, "assistant", text=text, at_token=opening.at_token, status="partial",
            finish_reason=EDITED,
        )  # fmt: skip
        session = target.session
        before = session.tip
        async with self._running.begin(session):
            written = await self._sessions.add(session, target.place(new))
            await self._sessions.drop_failed(session, target.of(node_id))
            self._windows.tell(SessionsChanged())
            await self._tokenise_written(session, written)
        await self._sessions.refresh(session)
        self._windows.tell_path(session, before)
        self._windows.refresh_status()

    async def open_as_text(self, session_id: int, node_id: int) -> None:
        """Copies the path to a turn under another root, as text without tokens, which any model can continue.

        An empty answer at its end is left out; a question at its end is answered.
        """
        session = await self._sessions.whole(session_id, node_id)
        self._node(session, node_id)
        self._running.check_idle(session_id)
        target = await self._copies.target(session, any_model=True)
        session, at = target.session, target.of(node_id)
        turns = session.tree.turns(at)
        root = turns[0].tip if turns and turns[0].role == "system" else None
        said = [turn for turn in (turns[1:] if root is not None else turns) if session.content(turn).strip()]
        if not said:
            raise Refusal(translate("Workbench", "there are no messages here yet"))
        before = session.tip
        async with self._running.begin(session):
            await begin_with(self._sessions, session, root, said, {AS_TEXT: len(said)})
        self._windows.tell_path(session, before)
        self._windows.tell(SessionsChanged())
        await self._answer_last(session)
        self._windows.refresh_status()

    async def suggest_title(self, session_id: int) -> str:
        return await title_from_model(self._supervisor, await self._sessions.whole(session_id))

    def stop(self, session_id: int) -> None:
        if (reading := self._reading.pop(session_id, None)) is not None:
            reading.cancel()
        self._running.stop(session_id)

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        session = self._sessions.find(session_id)
        node = session.tree.nodes.get(node_id) if session else None
        return how_made(node) if node is not None and node.whole else None  # every node that is shown has been read

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:  # noqa: ARG002  # one vocabulary so far
        """Bytes of any token, without the engine."""
        return [self._vocabulary.bytes_of(token) for token in token_ids]

    def find_tokens(self, session_id: int, text: str, most: int) -> Sequence[int]:  # noqa: ARG002  # one vocabulary so far
        return self._vocabulary.containing(text, most)

    # ---- helpers ------------------------------------------------------------------------------------------------------

    async def _tokens_of(self, model: LanguageModel, text: str) -> TokenRun:
        """Tokenises words that a person writes inside an answer; the last result is kept."""
        key = model.info.model_fingerprint, text
        words = self._words
        if words is None or words[0] != key:
            words = self._words = key, asyncio.create_task(typed_run(model, text), name="tokenise words")
        try:
            return await asyncio.shield(words[1])
        except RuntimeFault:
            self._words = None
            raise

    async def _go_on(self, answer: Answer, new: NewNode, given: Given, *, instead_of: int | None = None) -> None:
        """Adds a node that begins with known tokens, and streams its answer."""
        session = answer.session
        answer.back = session.tip if instead_of is None else None
        begins = None
        if given.fingerprint is not None and began(given.run):  # the id is saved: its text may be half a character
            begins = chunk(given.run, given.fingerprint)
        node = await self._sessions.add(session, new, begins)
        await self._sessions.drop_failed(session, instead_of)
        session.runs[node.id] = given.run
        answer.given = given
        await self._stream(answer, node, partial(self._tokeniser.from_known, given, session, node))

    async def _stream(self, answer: Answer, node: NodeRow, prepare: Prepare) -> None:
        """Streams into an open node that is the tip."""
        session = answer.session
        try:
            await self._streaming.run(answer, node.id, prepare)
            if answer.refused and answer.back is not None:
                await self._sessions.take_back(session, node.id)
                await self._sessions.move(session, answer.back, as_before=True)
                raise Refusal(answer.refused)
        except StoreError as fault:
            raise Refusal(
                translate(
                    "Workbench", "{0}. What the model wrote stays on the screen, and is saved before your next message"
                ).format(fault)
            ) from fault
        finally:
            await self._sessions.refresh(session)
            self._windows.tell_path(session, answer.before)
            self._windows.tell(SessionsChanged())
            self._windows.refresh_status()

    async def _tokenise_written(self, session: WholeSession, node: NodeRow) -> None:
        """Tokenises an answer that a person wrote if the running model can; otherwise it stays text."""
        model = self._supervisor.running
        if model is None:
            return
        try:
            check_tokens(model, session, session.tree.path(node.id))
            await self._tokeniser.own_words(session, await self._adapters.adapted(session, model), node)
        except EngineDiedError:
            await self._supervisor.died(model)
        except (RuntimeFault, InvalidRequestError, StoreError, Refusal):  # the next answer on this path reports it
            return

    def _node(self, session: WholeSession, node_id: int) -> NodeRow:
        node = session.tree.nodes.get(node_id)
        if node is None:
            raise Refusal(translate("Workbench", GONE))
        return node


def _as_stored(text: str) -> str:
    """Typed text without the characters that the store does not take."""
    return clean_text(text).replace("\0", "\ufffd")


def _scored(session: WholeSession) -> int:
    """Number of tokens of the path that have a log-probability."""
    runs = (session.runs.get(segment.node.id, EMPTY)[: segment.stop] for segment in session.tree.path(session.tip))
    return sum(int(np.count_nonzero(~np.isnan(run.logprob))) for run in runs)
