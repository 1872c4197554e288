"""Drafts of messages: token counts, surprise, attached files, and room in the context."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.supervisor import Supervisor
from app.workbench.answers.answer import RunningAnswers
from app.workbench.prompt.prompt import NewIds, as_run, render_turn
from app.workbench.refusals import refusing
from app.workbench.sessions.copying import Copies, begin_with
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.beginning import LEFT_OUT, Beginning, file_block, left_out
from app.workbench.setup.session_adapters import stack_of_session
from app.workbench.tree.runs import EMPTY
from app.workbench.tree.session import OpenSession, WholeSession
from app.workbench.tree.tree import PathSegment, TreeTurn
from app.workbench.windows import Windows
from resources.files import read_regular
from runtime import EngineDiedError, LanguageModel, Origin, Priority, RuntimeFault, TokenRun, clean_text
from storage import NodeRow
from ui import Composition, ContextPart, PartKind, Refusal, TextFile, translate

MOST_FILE_BYTES = 1 << 20
MOST_CHARACTERS = 1 << 16  # longest draft that is scored; checked before it is tokenised
MOST_SCORED = 1024  # most tokens computed to score a draft
SHARE_LEFT = 0.25  # share of the context reserved for the answer when turns are left out


class _Placed(Struct, frozen=True):
    """A draft at its place."""

    held: list[int]  # ids of the path before the draft
    new: NewIds  # ids that the draft adds


@dataclass(eq=False, repr=False)
class MessageDrafts:
    """The use cases of the message field (`ui.port.DraftCommands`); none changes existing messages."""

    _sessions: OpenSessions
    _supervisor: Supervisor
    _running: RunningAnswers  # running answers go before the scoring of drafts
    _copies: Copies  # of the sample, which is never changed
    _windows: Windows
    # token counts of the last draft's files, by model and text
    _counts: dict[tuple[str, str], asyncio.Task[int]] = field(default_factory=dict, init=False)

    async def compose(self, session_id: int, text: str, replaces: int | None = None, files: Sequence[str] = ()) -> Composition:
        """The token counts of a draft and its context, without a forward; unknown until the engine runs."""
        session = self._sessions.find(session_id)
        used = session.length_before(replaces) if session else 0
        model = self._supervisor.running
        if model is None:
            return Composition(None, None, used, None)
        if model.info.options.get("tokenizer") == "server":  # a draft stays on this machine until it is sent
            uncounted = session is not None and session.has_unread_text(session.place(replaces)[0])
            length = None if uncounted else model.info.told_context
            return Composition(None, None, used, length, takes_roles=model.info.has_template)
        try:
            of_files, rest, tokens = await self._count(model, files), text, 0
            if sum(of_files) > model.info.context_length:  # too long anyway: does not tokenise them in the draft
                for file in files:
                    rest = rest.replace(file.rstrip(), "", 1)
                tokens = sum(of_files)
            tokens += len(await model.tokenize_async(clean_text(rest))) if rest else 0
            composition = _with_whole_context(
                Composition(
                    tokens,
                    None,
                    used + tokens,
                    model.info.told_context,
                    files=of_files,
                    takes_roles=model.info.has_template,
                ),
                model,
            )
            if session is None:
                return composition
            parent, at = session.place(replaces)
            root = _system(session, parent)
            counted = at is None and not session.has_unread_text(parent) and (root is None or root.whole)
            if counted and used + tokens > model.info.context_length:  # too long for a forward: does not read the path
                opening = 0 if root is None else session.segment_length(PathSegment(root, None))
                return await self._with_parts(composition, model, root, opening, used, tokens)
            whole = await self._sessions.whole(session_id, replaces)
            unread = await _unread(model, whole, replaces)
            composition = replace(composition, context_used=composition.context_used + unread)
            return await self._with_ids(composition, model, whole, text, replaces)
        except EngineDiedError:
            await self._supervisor.died(model)
            return Composition(None, None, used, None)
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault

    async def score(self, session_id: int, text: str, replaces: int | None = None) -> TokenRun | None:
        """The scored tokens of a draft; None if no model is idle.

        Raises:
            Refusal: Too many tokens would have to be computed.
        """
        model = self._supervisor.running
        if self._sessions.find(session_id) is None or model is None or len(self._running) or not text.strip():
            return None
        if not model.has("kv"):  # text that was not sent stays on this machine
            return None
        if len(text) > MOST_CHARACTERS:
            words = translate("Workbench", "not coloured: it has {0:,} characters, and {1:,} is the most")
            raise Refusal(words.format(len(text), MOST_CHARACTERS))
        session = await self._sessions.whole(session_id, replaces)
        try:
            placed = await self._placed(model, session, text, replaces)
            if placed is None:
                return None
            ids, start = [*placed.held, *placed.new.system, *placed.new.user], len(placed.held) + len(placed.new.system)
            adapters = stack_of_session(session)
            warm = (await model.prefix_match_async(ids, adapters=adapters)).tokens
            if len(ids) > model.info.context_length:
                return None
            if len(ids) - warm > MOST_SCORED:
                words = translate("Workbench", "not coloured: {0:,} tokens would have to be read; the limit is {1:,}")
                raise Refusal(words.format(len(ids) - warm, MOST_SCORED))
            scored = await model.score_run(ids, 1, start, adapters=adapters, priority=Priority.BACKGROUND)
        except EngineDiedError:
            await self._supervisor.died(model)
            return None
        except RuntimeFault:  # reported when the draft is sent
            return None
        typed = np.flatnonzero(as_run(model, placed.new.user, clean_text(text)).origin == int(Origin.TYPED))
        return scored[int(typed[0]) : int(typed[-1]) + 1] if len(typed) else None

    # ---- files --------------------------------------------------------------------------------------------------------

    async def read_file(self, path: str) -> TextFile:
        """A text file, read on a thread.

        Raises:
            Refusal: It cannot be read, is not text, or is too large; gives the numbers.
        """
        return await asyncio.to_thread(_read_text, Path(path))

    # ---- room ---------------------------------------------------------------------------------------------------------

    async def leave_out(self, session_id: int, text: str) -> int:
        """Makes room for a message: copies only the latest turns under a new root; returns how many were left out.

        The whole conversation stays as another branch. The copied turns keep their tokens but are scored again.
        """
        session = await self._sessions.whole(session_id)
        model = self._supervisor.running
        self._running.check_idle(session_id)
        if model is None:
            raise Refusal(translate("Workbench", "tokens are counted once the engine runs; send the message to start it"))
        async with refusing(self._supervisor, model):
            tokens = len(await model.tokenize_async(clean_text(text)))
        before = session.place()[0]  # leaves out a question that did not fit, which will be asked again
        turns = session.tree.turns(before)
        system = turns[0] if turns and turns[0].role == "system" else None
        said = turns[1:] if system is not None else turns
        room = model.info.context_length * (1 - SHARE_LEFT) - tokens - (session.turn_length(system) if system else 0)
        kept = _latest(session, said, room)
        if len(kept) == len(said):
            raise Refusal(translate("Workbench", "the message alone is too long for the context; shorten it, or remove a file"))
        session.check_sound((segment for turn in kept for segment in turn.segments), after=len(turns) - len(kept))
        target = await self._copies.target(session)
        session = target.session
        left = session.tip
        with self._running.claim(session):
            turns = session.tree.turns(target.of(before))  # in the copy, if the session is the sample
            root = turns[0].tip if turns and turns[0].role == "system" else None
            stats = {LEFT_OUT: (left_out(root.stats) if root is not None else 0) + len(said) - len(kept)}
            last = turns[len(turns) - len(kept) :]
            await begin_with(self._sessions, session, root, last, stats, model.info.numbers_fingerprint)
        self._windows.tell_path(session, left)
        self._windows.refresh_status()
        return len(said) - len(kept)

    # ---- helpers ------------------------------------------------------------------------------------------------------

    async def _count(self, model: LanguageModel, files: Sequence[str]) -> tuple[int, ...]:
        """The token counts of files; cached while the draft changes."""
        keys = [(model.info.model_fingerprint, file) for file in files]
        self._counts = {key: count for key, count in self._counts.items() if key in keys}
        return tuple([await asyncio.shield(self._counts.get(key) or self._begin_count(model, key)) for key in keys])

    def _begin_count(self, model: LanguageModel, key: tuple[str, str]) -> asyncio.Task[int]:
        async def count() -> int:
            return len(await model.tokenize_async(clean_text(key[1])))

        def forget(task: asyncio.Task[int]) -> None:
            if (task.cancelled() or task.exception() is not None) and self._counts.get(key) is task:
                del self._counts[key]

        begun = self._counts[key] = asyncio.create_task(count(), name="count a file")
        begun.add_done_callback(forget)
        return begun

    async def _with_ids(
        self, composition: Composition, model: LanguageModel, session: WholeSession, text: str, replaces: int | None
    ) -> Composition:
        """Adds the parts of the context, with how much of each is cached."""
        try:
            placed = await self._placed(model, session, text, replaces)
        except EngineDiedError:
            raise
        except RuntimeFault:  # a template's refusal is reported when the message is sent
            placed = None
        if placed is None:
            return composition
        held, new = placed.held, placed.new
        ids = [*held, *new.system, *new.user, *new.header]
        adapters = stack_of_session(session)
        warm = 0
        if ids and len(ids) <= model.info.context_length:
            try:
                warm = (await model.prefix_match_async(ids, adapters=adapters)).tokens
            except EngineDiedError:
                raise
            except RuntimeFault:  # the adapters are not loaded yet
                warm = 0
        root = _system(session, session.place(replaces)[0])
        opening = len(new.system) or (len(session.runs.get(root.id, EMPTY)) if root is not None else 0)
        before, draft = len(held) + len(new.system), len(new.user) + len(new.header)
        return await self._with_parts(composition, model, root, opening, before, draft, warm)

    async def _with_parts(
        self,
        composition: Composition,
        model: LanguageModel,
        root: NodeRow | None,
        opening: int,
        before: int,
        draft: int,
        warm: int = 0,
    ) -> Composition:
        """Adds the parts of the context.

        Args:
            composition: The result so far.
            model: Counts the tokens of files.
            root: The node of the system prompt, if any.
            opening: Tokens of the system prompt.
            before: Tokens before the draft, including `opening`.
            draft: Tokens of the draft.
            warm: Tokens of the prompt that are cached.
        """
        files = 0
        for file in Beginning.of(root).files if root is not None else ():
            files += len(await model.tokenize_async(file_block(file)))
        files = min(files, opening)
        lengths = (
            (PartKind.SYSTEM, opening - files),
            (PartKind.FILES, files),
            (PartKind.HISTORY, max(before - opening, 0)),
            (PartKind.DRAFT, draft),
        )
        parts, start = [], 0
        for kind, length in lengths:
            parts.append(ContextPart(kind, length, min(max(warm - start, 0), length)))
            start += length
        return replace(composition, parts=tuple(parts), new_tokens=start - warm)

    async def _placed(self, model: LanguageModel, session: WholeSession, text: str, replaces: int | None) -> _Placed | None:
        """The ids before a draft and the ids that it adds; None if it would branch inside another turn."""
        parent, at = session.place(replaces)
        if at is not None:
            return None
        held = session.path_ids(session.tree.path(parent))
        text = clean_text(text)
        if not text.strip():
            return _Placed(held, NewIds([], [], []))
        messages = [*session.messages(session.tree.turns(parent)), {"role": "user", "content": text}]
        tools = (session.tools(parent) if parent is not None else []) or None
        return _Placed(held, await render_turn(model, held, messages, tools=tools))


def _system(session: OpenSession, tip: int | None) -> NodeRow | None:
    """The node of a path's system prompt; None if it has none."""
    root = session.tree.root(tip)
    return root if root is not None and root.role == "system" else None


async def _unread(model: LanguageModel, session: WholeSession, replaces: int | None) -> int:
    """Tokens of the turns without ids, minus one for each, since the path counts such a turn as one token."""
    nodes = [segment.node for segment in session.tree.path(session.place(replaces)[0])]
    texts = [node.text for node in nodes if node.text and not len(session.runs.get(node.id, EMPTY))]
    return sum([len(await model.tokenize_async(text)) - 1 for text in texts])


def _with_whole_context(composition: Composition, model: LanguageModel) -> Composition:
    """Adds whether the context can grow to the model's own, and the memory for that."""
    whole, budget = model.info.whole_context, model.metrics().kv_budget
    if whole <= model.info.context_length:
        return composition
    needed = whole * model.info.kv_bytes_per_token
    return replace(composition, can_grow=needed <= budget, whole_context=whole, whole_bytes=needed, kv_budget=budget)


def _latest(session: WholeSession, turns: list[TreeTurn], room: float) -> list[TreeTurn]:
    """The latest turns, from a question on, that fit into `room` tokens."""
    start, length = len(turns), 0
    for place in range(len(turns) - 1, -1, -1):
        length += session.turn_length(turns[place])
        if length > room:
            break
        if turns[place].role == "user":
            start = place
    return turns[start:]


def _read_text(path: Path) -> TextFile:
    try:
        data = read_regular(path, MOST_FILE_BYTES)
    except OSError as fault:
        if fault.errno == errno.EFBIG:
            words = translate("Workbench", "{0} has {1:,} bytes; at most {2:,} are read. Attach a part of it")
            raise Refusal(words.format(path.name, path.stat().st_size, MOST_FILE_BYTES)) from fault
        raise Refusal(translate("Workbench", "{0} cannot be read: {1}").format(path.name, fault.strerror or fault)) from fault
    zero = data.find(0)
    if zero >= 0:
        raise Refusal(translate("Workbench", "{0} is not text: byte {1:,} of {2:,} is 0").format(path.name, zero, len(data)))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise Refusal(
            translate("Workbench", "{0} is not UTF-8 text: byte {1:,} of {2:,} is {3:#04x}").format(
                path.name, fault.start, len(data), data[fault.start]
            )
        ) from None
    if not text.strip():
        raise Refusal(translate("Workbench", "{0} is empty ({1:,} bytes)").format(path.name, len(data)))
    return TextFile(path.name, clean_text(text))
