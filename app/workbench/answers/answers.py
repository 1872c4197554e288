"""What starts an answer: a message, another token, another try, going on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from app.workbench.answers.answer import Answer, Given
from app.workbench.answers.provenance import Repeat
from app.workbench.answers.provenance_text import refusal
from app.workbench.answers.resolve_options import Continued
from app.workbench.answers.streaming import Answers, Prepare
from app.workbench.prompt.prompt import Tokeniser, check_tokens
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import GONE
from app.workbench.sessions.copying import Copies
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.setup.beginning import Beginning, as_text, left_out
from app.workbench.tree.path_tokens import content_of
from app.workbench.tree.places import beside
from app.workbench.tree.runs import EMPTY, began, leading_template, pick
from app.workbench.tree.session import UNTITLED, OpenSession
from runtime import Finish, InvalidRequestError, RuntimeFault, TokenRun, clean_text, fresh_seed
from storage import NewNode, NodeRow, StoreError
from ui import Event, Refusal, SessionChanged, SessionsChanged, translate

TITLE_LENGTH = 60


class Turns:
    """The use cases that end in a streamed answer; each returns when it has ended.

    Args:
        sessions: The open sessions.
        copies: Takes changes of the sample elsewhere.
        answers: Streams.
        tokeniser: Turns what was typed into ids.
        vocabulary: Knows the bytes of an alternative.
        tell: Takes events for the window.
        on_progress: Called when counters changed.
    """

    def __init__(
        self,
        sessions: Sessions,
        copies: Copies,
        answers: Answers,
        tokeniser: Tokeniser,
        vocabulary: Vocabulary,
        tell: Callable[[Event], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._copies = copies
        self._answers = answers
        self._tokeniser = tokeniser
        self._vocabulary = vocabulary
        self._tell = tell
        self._progress = on_progress

    async def send(self, session_id: int, text: str, replaces: int | None) -> None:
        """Saves the user's turn (beside `replaces`, an earlier version of it), then streams an answer."""
        session = self._sessions.opened(session_id)
        text = clean_text(text).replace("\0", "\ufffd")  # as the store keeps it
        if not text.strip():
            raise Refusal(translate("Workbench", "write a message first"))
        if replaces is not None and session.tree.opening(self._node(session, replaces)).role != "user":
            raise Refusal(translate("Workbench", "this turn cannot be edited"))
        target = await self._copies.target(session)
        session, replaces = target.session, target.of(replaces)
        with self._answers.claim(session) as answer:
            await self._answers.settle(session)
            failed = None if session.overflowed(session.tip) else session.tip
            parent, at = session.place(replaces)
            if parent is None and session.tip is None:
                parent = (await self._sessions.add(session, NewNode(session.id, None, "system"))).id
            user = await self._sessions.add(session, NewNode(session.id, parent, "user", text=text, at_token=at))
            node = await self._sessions.add(session, NewNode(session.id, user.id, "assistant", status="open"))
            await self._sessions.drop_failed(session, failed)
            if session.title == UNTITLED:
                await self._sessions.rename(session.id, title_of(text))
            self._tell(SessionsChanged())
            await self._stream(answer, node, partial(self._tokeniser.after_user, session, node))

    async def answer_call(self, session_id: int, node_id: int, results: Sequence[str]) -> None:
        """The results of the calls in an answer, each as a tool's turn; then streams an answer to them."""
        session = self._sessions.opened(session_id)
        results = [clean_text(text).replace("\0", "\ufffd") for text in results]
        if not results or not all(text.strip() for text in results):
            raise Refusal(translate("Workbench", "write the result first; a call that failed has one too, such as an error"))
        node = self._node(session, node_id)
        calls = next((turn.calls for turn in session.turn_views() if turn.node_id == node_id), ())
        if node.role != "assistant" or not calls:
            raise Refusal(translate("Workbench", "nothing is called there, or it was answered already"))
        if len(results) != len(calls):
            raise Refusal(
                translate("Workbench", "{0} calls stand there and {1} results were given; each call has one of its own").format(
                    len(calls), len(results)
                )
            )
        target = await self._copies.target(session)
        session, parent = target.session, target.of(node_id)
        with self._answers.claim(session) as answer:
            await self._answers.settle(session)
            for text in results:
                parent = (await self._sessions.add(session, NewNode(session.id, parent, "tool", text=text))).id
            reply = await self._sessions.add(session, NewNode(session.id, parent, "assistant", status="open"))
            self._tell(SessionsChanged())
            await self._stream(answer, reply, partial(self._tokeniser.after_user, session, reply))

    async def answer_last(self, session: OpenSession) -> None:
        """Streams an answer to the question that ends the path, where it ends with one."""
        last = session.tree.nodes.get(session.tip) if session.tip is not None else None
        if last is None or last.role not in ("user", "tool"):
            return
        with self._answers.claim(session) as answer:
            await self._answers.settle(session)
            reply = await self._sessions.add(session, NewNode(session.id, last.id, "assistant", status="open"))
            await self._stream(answer, reply, partial(self._tokeniser.after_user, session, reply))

    async def begin(self, session_id: int, beginning: Beginning) -> OpenSession:
        """Another beginning; one that is there already is shown again. Returns the session, or the copy of the sample."""
        session = self._sessions.opened(session_id)
        self._answers.check_idle(session_id)
        if beginning == session.beginning():
            return session
        session = (await self._copies.target(session)).session
        with self._answers.claim(session):
            await self._begin(session, beginning)
        self._tell(SessionChanged(session.view()))
        self._progress()
        return session

    async def _begin(self, session: OpenSession, beginning: Beginning) -> None:
        first = (root for root in session.tree.children(None) if root.role == "system")
        roots = [root for root in first if not left_out(root.stats) and not as_text(root.stats)]
        same = next((root for root in roots if Beginning.of(root) == beginning), None)
        if same is None:
            new = NewNode(session.id, None, "system", text=beginning.system, stats=beginning.stats)
            await self._sessions.add(session, new)
        else:
            await self._sessions.move(session, same.id)

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        """A sibling that has another token at `index`, and goes on from there."""
        session = self._sessions.opened(session_id)
        new = beside(session, node_id, index)
        place = session.locate(node_id, index)
        assert place is not None  # or there were nothing beside it
        node, offset = place
        picked = pick(session.runs[node.id], offset, token_id, self._vocabulary.bytes_of(token_id))
        new = replace(new, text=picked.text)
        target = await self._copies.target(session)
        with self._answers.claim(target.session) as answer:
            await self._answers.settle(target.session)
            await self._go_on(answer, target.place(new), Given(picked, node.kv_fingerprint))

    async def regenerate(self, session_id: int, node_id: int) -> None:
        """Another answer beside the model's turn; with a seed of its own, also where one was chosen for the session."""
        session = self._sessions.opened(session_id)
        opening = session.tree.opening(self._node(session, node_id))
        if opening.role != "assistant":
            raise Refusal(translate("Workbench", "only the model's turns can be regenerated; edit your own"))
        run = session.runs.get(opening.id, EMPTY)
        header = run[: leading_template(run)]
        target = await self._copies.target(session)
        new = target.place(NewNode(session.id, opening.parent_id, "assistant", at_token=opening.at_token, status="open"))
        session, failed = target.session, target.of(node_id)
        with self._answers.claim(session) as answer:
            await self._answers.settle(session)
            answer.seed = fresh_seed()
            if len(header):
                await self._go_on(answer, new, Given(header, opening.kv_fingerprint), instead_of=failed)
            else:
                node = await self._sessions.add(session, new)
                await self._sessions.drop_failed(session, failed)
                await self._stream(answer, node, partial(self._tokeniser.after_user, session, node))

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        """The same answer once more, beside the turn: with the options, the seed and the model that it was made with."""
        session = self._sessions.opened(session_id)
        node = self._node(session, node_id)
        if node.role != "assistant":
            raise Refusal(translate("Workbench", "only the model's turns can be regenerated; edit your own"))
        self._answers.check_idle(session_id)
        session.check_sound(session.tree.path(node_id))
        if why := refusal(node):
            raise Refusal(why)
        if why := refusal(node, await self._answers.model()):
            raise Refusal(why)
        run = session.runs.get(node_id, EMPTY)
        try:
            repeat = Repeat.read(node, run)
        except InvalidRequestError as fault:
            raise Refusal(str(fault)) from fault
        await self._answers.require(repeat.made)
        known = run[: len(run) - len(repeat.ids)]  # the header, or a token that was picked
        new = NewNode(
            session.id, node.parent_id, "assistant", at_token=node.at_token, at_byte=node.at_byte, turn_start=node.turn_start,
            status="open", text=content_of(known),
        )  # fmt: skip
        target = await self._copies.target(session)
        of = target.of(node_id)
        with self._answers.claim(target.session) as answer:
            await self._answers.settle(target.session)
            answer.repeats = repeat if of is None else replace(repeat, of=of)
            await self._go_on(answer, target.place(new), Given(known, node.kv_fingerprint))

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        """Goes on with an answer that was stopped, with what it was made with (see `continuing`)."""
        session = self._sessions.opened(session_id)
        node = self._node(session, node_id)
        run = session.runs.get(node_id, EMPTY)
        if node.role == "assistant" and not len(run) and node.text:  # text that no model has seen
            run = await self._cut(session, node)
        if node.role != "assistant" or not began(run):
            raise Refusal(translate("Workbench", "there is nothing to go on from; regenerate the answer instead"))
        if Finish(int(run.finish[-1])).by_eos:
            raise Refusal(translate("Workbench", "the answer is complete; the model ended it itself"))
        new = NewNode(session.id, node_id, "assistant", turn_start=False, status="open")
        target = await self._copies.target(session)
        with self._answers.claim(target.session) as answer:
            await self._answers.settle(target.session)
            answer.continues = Continued.read(session.tree, node)
            await self._go_on(answer, target.place(new), Given(EMPTY, session.tree.nodes[node_id].kv_fingerprint))

    async def _cut(self, session: OpenSession, node: NodeRow) -> TokenRun:
        """The tokens of an answer that is text so far, on the disk when they come back."""
        with self._answers.claim(session):
            await self._answers.settle(session)
            session.check_sound(session.tree.path(node.id))
            model = await self._answers.model()
            try:
                check_tokens(model, session, session.tree.path(node.id))
                await self._tokeniser.own_words(session, await self._answers.speaker_now(session, model), node)
            except (RuntimeFault, StoreError) as fault:
                raise Refusal(str(fault)) from fault
            await self._sessions.refresh(session)
        return session.runs[node.id]

    # ---- how ----------------------------------------------------------------------------------------------------------

    async def _go_on(self, answer: Answer, new: NewNode, given: Given, *, instead_of: int | None = None) -> None:
        """An answer that begins with tokens which are known already."""
        session = answer.session
        answer.back = session.tip if instead_of is None else None
        node = await self._sessions.add(session, new)
        await self._sessions.drop_failed(session, instead_of)
        session.runs[node.id] = given.run
        answer.given = given
        await self._stream(answer, node, partial(self._tokeniser.from_known, given, session, node))

    async def _stream(self, answer: Answer, node: NodeRow, prepare: Prepare) -> None:
        """Streams into an open node that has just become the tip."""
        session = answer.session
        try:
            await self._answers.run(answer, node.id, prepare)
            if answer.refused and answer.back is not None:
                await self._sessions.take_back(session, node.id)
                await self._sessions.move(session, answer.back)
                raise Refusal(answer.refused)
        except StoreError as fault:
            raise Refusal(
                translate(
                    "Workbench", "{0}. What the model wrote stays on the screen, and is saved before your next message is"
                ).format(fault)
            ) from fault
        finally:
            await self._sessions.refresh(session)
            self._tell(SessionChanged(session.view()))
            self._tell(SessionsChanged())
            self._progress()

    def _node(self, session: OpenSession, node_id: int) -> NodeRow:
        node = session.tree.nodes.get(node_id)
        if node is None:
            raise Refusal(translate("Workbench", GONE))
        return node


def title_of(text: str) -> str:
    """The first words of a message, not cut inside a word where there is a place between two."""
    words = " ".join(text.split())
    if len(words) <= TITLE_LENGTH:
        return words
    head, _, _ = words[:TITLE_LENGTH].rpartition(" ")
    return (head if len(head) > TITLE_LENGTH // 2 else words[: TITLE_LENGTH - 1]) + "…"
