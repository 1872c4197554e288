"""Tokenises the next turn of a conversation: ids in the tree stay as they are, only the rest is rendered.

A node stores exactly the ids that entered the model: the header belongs to the turn it opens, the closing eos to the turn
it ends, and a newline after that to the next header. Concatenating a path gives the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import Struct

from app.workbench.answers.answer import Given
from app.workbench.answers.provenance import MADE
from app.workbench.prompt.recorder import chunk
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.setup.session_adapters import AdaptedModel
from app.workbench.tree.runs import EMPTY, as_eos, without_numbers
from app.workbench.tree.session import WholeSession
from app.workbench.tree.tree import PathSegment, TreeTurn
from runtime import InvalidRequestError, LanguageModel, Origin, TokenRun, aligned, texts_of
from storage import NodeRow, SessionStore, StoreError
from ui import translate

Message = Mapping[str, str]
Tools = Sequence[Mapping[str, Any]] | None


class OtherTokenizerError(InvalidRequestError):
    """The tokens of a path have other bytes in the model that should continue it.

    Attributes:
        what: The first differing token, in words.
        name: The model that wrote the tokens; "" if unknown.
    """

    def __init__(self, what: str, name: str) -> None:
        if name:
            way = translate("Workbench", "Choose the model it was written with, {0}, or start a new session").format(name)
        else:
            way = translate("Workbench", "Choose the model it was written with, or start a new session")
        super().__init__(f"{what}. {way}")
        self.what, self.name = what, name


MARK = "\U000f8f8f"  # placeholder for the previous turn: a private-use character, which is never typed


class NewIds(Struct, frozen=True):
    """The ids of a turn and of the header that opens the answer; `system` comes before the first turn only."""

    system: list[int]
    user: list[int]
    header: list[int]


async def render_turn(
    model: LanguageModel, held: Sequence[int], messages: Sequence[Message], *, tools: Tools = None, new: int = 1
) -> NewIds:
    """The ids that the last message (or the last `new` ones together) adds to `held`, and the header after it.

    If the rendering does not begin with `held` (the template changes history, or an answer was cut inside a character),
    renders the previous turn as a placeholder, and takes the ids after it: `held` stays verbatim.

    Raises:
        InvalidRequestError: The template refuses the last message, both with the others and alone.
    """
    if not model.info.has_template:
        return await _as_text(model, held, messages, new)
    try:
        messages, full = await _as_taken(model, messages, tools)
    except InvalidRequestError:
        if not held:
            raise
        return await _alone(model, messages, tools, new)
    closed = await model.render_chat_async(messages, tools=tools, add_generation_prompt=False)
    split = len(closed) if full[: len(closed)] == closed else len(full)
    start = _aligned(model, held, full)
    if start is None or start > split:
        after = await _after_mark(model, held, messages, tools, new)
        return after or await _alone(model, messages, tools, new)
    user, header = _close_at_eos(model, full[start:split], full[split:])
    system: list[int] = []
    if not held:
        system, user = _system_part(model, user)
    return NewIds(system, user, header)


async def render_header(model: LanguageModel, messages: Sequence[Message], *, tools: Tools = None) -> list[int]:
    """The header that opens an answer to the last message (with the newline after its eos)."""
    if not model.info.has_template:
        return []
    messages, full = await _as_taken(model, messages, tools)
    closed = await model.render_chat_async(messages, tools=tools, add_generation_prompt=False)
    if full[: len(closed)] != closed:
        return []
    return _close_at_eos(model, closed, full[len(closed) :])[1]


async def _as_text(model: LanguageModel, held: Sequence[int], messages: Sequence[Message], new: int) -> NewIds:
    """The new ids for a model without a template: those of the plain text."""
    first = messages[0]["content"] if messages[0]["role"] == "system" and not held else ""
    system = await model.tokenize_async(f"{first}\n\n") if first.strip() else []
    text = "\n".join(message["content"] for message in messages[-new:])
    return NewIds(system, await model.tokenize_async(text, add_special_tokens=not held and not system), [])


async def _as_taken(model: LanguageModel, messages: Sequence[Message], tools: Tools) -> tuple[Sequence[Message], list[int]]:
    """The messages in a form that the template accepts, and their ids.

    Many templates refuse two questions in a row, which a failed answer leaves behind. An empty answer is inserted between
    them: the ids of the first question stay a prefix, which joining the questions would change.

    Raises:
        InvalidRequestError: The template refuses this form too.
    """
    try:
        return messages, await model.render_chat_async(messages, tools=tools, add_generation_prompt=True)
    except InvalidRequestError:
        filled = with_empty_answers(messages)
        if len(filled) == len(messages):
            raise
        return filled, await model.render_chat_async(filled, tools=tools, add_generation_prompt=True)


def with_empty_answers(messages: Sequence[Message]) -> list[Message]:
    """The messages with an empty answer after every question that has none."""
    filled: list[Message] = []
    for message in messages:
        if filled and filled[-1]["role"] == message["role"] == "user":
            filled.append({"role": "assistant", "content": ""})
        filled.append(message)
    return filled


async def _after_mark(
    model: LanguageModel, held: Sequence[int], messages: Sequence[Message], tools: Tools, new: int
) -> NewIds | None:
    """The ids that the template writes after a placeholder for the previous turn: that turn's end and the new messages."""
    before = len(messages) - new - 1
    if before < 0:
        return None
    marked = [*messages[:before], {**messages[before], "content": MARK}, *messages[before + 1 :]]
    full = await model.render_chat_async(marked, tools=tools, add_generation_prompt=True)
    closed = await model.render_chat_async(marked, tools=tools, add_generation_prompt=False)
    split = len(closed) if full[: len(closed)] == closed else len(full)
    start = _end_of(model, full, MARK.encode())
    if start is None or start > split:
        return None
    if start < split and model.is_eos(full[start]) and model.is_eos(held[-1]):
        start += 1
    user, header = _close_at_eos(model, full[start:split], full[split:])
    return NewIds([], user, header)


def parts_of(model: LanguageModel, ids: list[int], contents: Sequence[str]) -> list[list[int]]:
    """Splits the ids of several messages that were rendered together, each after its content.

    A message whose content the template changed gets one token, so that none is empty.
    """
    pieces = [model.decode_token(i) for i in ids]
    ends, data, parts, cut = np.cumsum([len(piece) for piece in pieces]), b"".join(pieces), list[list[int]](), 0
    for left, content in zip(range(len(contents) - 1, 0, -1), contents, strict=False):
        said = content.strip().encode()
        found = data.find(said, int(ends[cut - 1]) if cut else 0)
        stop = cut + 1 if found < 0 else int(np.searchsorted(ends, found + len(said))) + 1
        parts.append(ids[cut : min(stop, len(ids) - left)])
        cut += len(parts[-1])
    return [*parts, ids[cut:]]


def _end_of(model: LanguageModel, ids: Sequence[int], data: bytes) -> int | None:
    """The index of the token after the first occurrence of `data`, if a token ends there."""
    pieces = [model.decode_token(i) for i in ids]
    at = b"".join(pieces).find(data)
    ends = np.cumsum([len(piece) for piece in pieces])
    found = np.flatnonzero(ends == at + len(data))
    return int(found[0]) + 1 if at >= 0 and found.size else None


async def _alone(model: LanguageModel, messages: Sequence[Message], tools: Tools, new: int) -> NewIds:
    """The ids of the last `new` messages, rendered without their history."""
    last = messages[-new:]
    full = await model.render_chat_async(last, tools=tools, add_generation_prompt=True)
    closed = await model.render_chat_async(last, tools=tools, add_generation_prompt=False)
    split = len(closed) if full[: len(closed)] == closed else len(full)
    user, header = _close_at_eos(model, full[:split], full[split:])
    return NewIds([], _system_part(model, user)[1], header)


def _aligned(model: LanguageModel, held: Sequence[int], full: Sequence[int]) -> int | None:
    """The index in `full` where the bytes of `held` end, if it begins with them and a token ends there."""
    same = aligned(held, full, model.decode_token)
    return same.full if same.held == len(held) else None


def _close_at_eos(model: LanguageModel, turn: list[int], header: list[int]) -> tuple[list[int], list[int]]:
    """Moves the tokens after the turn's closing eos (a newline) to the header."""
    for end in range(len(turn), 0, -1):
        if model.is_eos(turn[end - 1]):
            return turn[:end], turn[end:] + header
        if model.decode_token(turn[end - 1]).strip():
            break
    return turn, header


def _system_part(model: LanguageModel, ids: list[int]) -> tuple[list[int], list[int]]:
    """Splits the system prompt off a first turn, after the last eos before that turn's own."""
    ends = [at for at, token in enumerate(ids[:-1]) if model.is_eos(token)]
    cut = ends[-1] + 1 if ends else 0
    return ids[:cut], ids[cut:]


def check_tokens(model: LanguageModel, session: WholeSession, segments: Sequence[PathSegment]) -> None:
    """Refuses a path whose ids have other bytes in this model.

    Raises:
        OtherTokenizerError: A token differs; names the first one.
    """
    mine = model.info.numbers_fingerprint
    for segment in segments:
        run = session.runs.get(segment.node.id)
        if run is None or segment.node.kv_fingerprint in (None, mine):
            continue
        for token, data in zip(run.ids.tolist(), run.token_bytes, strict=True):
            if token >= model.info.vocab_size or model.decode_token(token) != data:
                words = translate(
                    "Workbench",
                    "this session was written with another tokenizer: its token {0} ({1!r}) means something else to {2}",
                )
                what = words.format(token, data.decode(errors="replace"), model.info.name)
                raise OtherTokenizerError(what, _written_by(session, segment.node.kv_fingerprint))


def _written_by(session: WholeSession, fingerprint: str | None) -> str:
    """The name of a model by its fingerprint, from the answers of the session; "" if unknown."""
    made = (node.stats.get(MADE) for node in session.tree.held() if node.kv_fingerprint == fingerprint)
    return next((str(one["model"]) for one in made if isinstance(one, Mapping) and one.get("model")), "")


def as_run(model: LanguageModel, ids: Sequence[int], content: str) -> TokenRun:
    """The unscored tokens of a turn: those of `content` have the origin typed, the others template."""
    token_bytes = [model.decode_token(i) for i in ids]
    run = TokenRun.unscored(ids, token_bytes, texts_of(token_bytes), Origin.TEMPLATE)
    # so that a typed "end" is not found in a closing <|im_end|>, eos bytes are replaced by one that no text has
    ends = set(model.eos_token_ids)
    data = b"".join(b"\xff" * len(b) if i in ends else b for i, b in zip(ids, token_bytes, strict=True))
    found = [(at, len(c)) for c in (content.encode(), content.strip().encode()) if c and (at := data.rfind(c)) >= 0]
    if not found:
        return run
    start, end = found[0][0], sum(found[0])
    edges = np.cumsum([0, *(len(b) for b in token_bytes)])
    typed = (edges[1:] > start) & (edges[:-1] < end)
    return replace(run, origin=np.where(typed, int(Origin.TYPED), int(Origin.TEMPLATE)).astype(np.uint8))


async def typed_run(model: LanguageModel, text: str) -> TokenRun:
    """Unscored tokens of words that a person writes inside a turn."""
    said = await model.tokenize_async(text, add_special_tokens=False)
    token_bytes = [model.decode_token(i) for i in said]
    return TokenRun.unscored(said, token_bytes, texts_of(token_bytes), Origin.TYPED)


class Tokeniser:
    """Tokenises messages with the template of the model that answers."""

    def __init__(self, store: SessionStore, vocabulary: Vocabulary) -> None:
        self._store = store
        self._vocabulary = vocabulary

    async def from_known(self, given: Given, session: WholeSession, node: NodeRow, adapted: AdaptedModel) -> TokenRun:
        """The known tokens with which the node begins; tokenises the turns before it."""
        await self.before(session, adapted, node.id)
        known = given.run if given.fingerprint == adapted.fingerprint else without_numbers(given.run)
        if len(known) and int(known.origin[-1]) == Origin.PICKED and adapted.model.is_eos(int(known.ids[-1])):
            return as_eos(known)
        return known

    async def after_user(self, session: WholeSession, node: NodeRow, adapted: AdaptedModel) -> TokenRun:
        """The header of an answer, with which the node begins; tokenises the turns before it."""
        header = await self.before(session, adapted, node.id)
        if header is None:
            turns = session.tree.turns(node.parent_id)
            header = await render_header(adapted.model, session.messages(turns), tools=session.tools(node.id) or None)
        return as_run(adapted.model, header, "")

    async def own_words(self, session: WholeSession, adapted: AdaptedModel, node: NodeRow) -> None:
        """Tokenises an answer that a person wrote, after the header of an answer."""
        model = adapted.model
        header = await self.after_user(session, node, adapted)
        said = await model.tokenize_async(node.text, add_special_tokens=False)
        await self._keep(session, adapted, node, as_run(model, [*header.ids.tolist(), *said], node.text))

    async def along(self, session: WholeSession, adapted: AdaptedModel, node_id: int) -> None:
        """Tokenises the path to a node: messages without ids, and answers after the last turn with ids."""
        turns = session.tree.turns(node_id)
        seen = [count for count, turn in enumerate(turns, 1) if len(session.runs.get(turn.tip.id, EMPTY))]
        for turn in turns[max(seen, default=0) :]:
            if turn.role == "assistant" and turn.tip.text:
                await self.own_words(session, adapted, turn.tip)
        await self._tokenise(session, adapted, turns, session.tools(node_id) or None)

    async def before(self, session: WholeSession, adapted: AdaptedModel, node_id: int) -> list[int] | None:
        """Tokenises the user turns before the turn that `node_id` ends; returns the header after the last new one."""
        turns = [turn for turn in session.tree.turns(node_id) if turn.tip.id != node_id]
        return await self._tokenise(session, adapted, turns, session.tools(node_id) or None)

    async def _tokenise(
        self, session: WholeSession, adapted: AdaptedModel, turns: Sequence[TreeTurn], tools: Tools
    ) -> list[int] | None:
        """Tokenises the user and tool turns that have no ids; returns the header after the last one."""
        model = adapted.model
        await self._vocabulary.learn_adapted(adapted)
        header: list[int] | None = None
        waiting: list[TreeTurn] = []  # results of one answer's tool calls, which templates render together
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
                await self._keep(session, adapted, parents[0].node, as_run(model, ids.system, session.content(turns[0])))
            contents = [each.tip.text for each in waiting]
            for each, part in zip(waiting, parts_of(model, ids.user, contents), strict=True):
                await self._keep(session, adapted, each.tip, as_run(model, part, each.tip.text))
            header, waiting = ids.header, []
        return header

    async def _keep(self, session: WholeSession, adapted: AdaptedModel, node: NodeRow, run: TokenRun) -> None:
        """Saves the ids of a turn before the model reads them."""
        session.runs[node.id] = run  # first: a write under way is completed even if this is cancelled
        try:
            await self._store.append_chunk(node.id, chunk(run, adapted.fingerprint))
        except StoreError:
            del session.runs[node.id]
            raise
