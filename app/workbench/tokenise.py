"""The tokens an answer starts from: the ids of what was typed, on the disk before the model sees them."""

from __future__ import annotations

from app.workbench.answer import Given
from app.workbench.growing import EMPTY
from app.workbench.pick import as_eos, without_numbers
from app.workbench.prompt import as_run, parts_of, render_header, render_turn
from app.workbench.recorder import chunk
from app.workbench.session import OpenSession
from app.workbench.speaker import Speaker
from app.workbench.tree import Turn
from app.workbench.vocabulary import Vocabulary
from runtime import Origin, TokenRun
from storage import NodeRow, SessionStore, StoreError


class Tokeniser:
    """Turns what was typed into ids, with the template of the model that answers."""

    def __init__(self, store: SessionStore, vocabulary: Vocabulary) -> None:
        self._store = store
        self._vocabulary = vocabulary

    async def from_known(self, given: Given, session: OpenSession, node: NodeRow, speaker: Speaker) -> TokenRun:
        """The node begins with tokens that are known already; turns before it may still need theirs."""
        await self._tokenise(session, speaker, before=node.id)
        known = given.run if given.fingerprint == speaker.numbers else without_numbers(given.run)
        if len(known) and int(known.origin[-1]) == Origin.PICKED and speaker.model.is_eos(int(known.ids[-1])):
            return as_eos(known)
        return known

    async def after_user(self, session: OpenSession, node: NodeRow, speaker: Speaker) -> TokenRun:
        """The node begins with the header the template puts before an answer."""
        header = await self._tokenise(session, speaker, before=node.id)
        if header is None:
            turns = session.tree.turns(node.parent_id)
            header = await render_header(speaker.model, session.messages(turns), tools=session.tools(node.id) or None)
        return as_run(speaker.model, header, "")

    async def own_words(self, session: OpenSession, speaker: Speaker, node: NodeRow) -> None:
        """The ids of an answer that somebody wrote, behind the header of an answer."""
        model = speaker.model
        header = await self.after_user(session, node, speaker)
        begin, ids = await model.tokenize_async(""), await model.tokenize_async(node.text)
        said = ids[len(begin) :] if ids[: len(begin)] == begin else ids
        await self._keep(session, speaker, node, as_run(model, [*header.ids.tolist(), *said], node.text))

    async def before(self, session: OpenSession, speaker: Speaker, node_id: int) -> None:
        """Turns of the path before the one that `node_id` ends get their ids, where no model has seen them yet."""
        await self._tokenise(session, speaker, before=node_id)

    async def _tokenise(self, session: OpenSession, speaker: Speaker, before: int) -> list[int] | None:
        """Gives the user turns of the path their ids, where no model has seen them yet; the last one's header."""
        model = speaker.model
        await self._vocabulary.learn_speaker(speaker)
        tools = session.tools(before) or None
        header: list[int] | None = None
        turns = [turn for turn in session.tree.turns(before) if turn.tip.id != before]
        waiting: list[Turn] = []  # results of one answer's calls: templates write them together
        for count, turn in enumerate(turns, 1):
            if turn.role not in ("user", "tool") or len(session.runs.get(turn.tip.id, EMPTY)):
                continue
            waiting.append(turn)
            if turn.role == "tool" and count < len(turns) and turns[count].role == "tool":
                continue
            parents = session.tree.path(waiting[0].tip.id)[:-1]
            held, messages = session.path_ids(parents), session.messages(turns[:count])
            ids = await render_turn(model, held, messages, tools=tools, new=len(waiting))
            if ids.system and parents:
                await self._keep(session, speaker, parents[0].node, as_run(model, ids.system, session.content(turns[0])))
            contents = [each.tip.text for each in waiting]
            for each, part in zip(waiting, parts_of(model, ids.user, contents), strict=True):
                await self._keep(session, speaker, each.tip, as_run(model, part, each.tip.text))
            header, waiting = ids.header, []
        return header

    async def _keep(self, session: OpenSession, speaker: Speaker, node: NodeRow, run: TokenRun) -> None:
        """The ids of a saved turn: on the disk before the model sees them."""
        session.runs[node.id] = run  # first: a write that was begun is carried out, also when somebody presses stop
        try:
            await self._store.append_chunk(node.id, chunk(run, speaker.numbers))
        except StoreError:
            del session.runs[node.id]
            raise
