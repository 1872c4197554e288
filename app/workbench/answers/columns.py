"""The running continuations of one place, as plain data: the place, the tokens of each, and the window's view."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from app.workbench.answers.answer import Answer
from app.workbench.answers.completion import Ending
from app.workbench.tree.runs import EMPTY, content_of
from app.workbench.tree.session import WholeSession
from app.workbench.tree.tree import PathSegment
from app.workbench.tree.turn_notes import ending_note
from runtime import BeamOptions, GenerationOptions, LanguageModel, Origin, TokenRun, texts_of
from storage import NewNode, SessionStore, StoreError
from ui import QT_TRANSLATE_NOOP, BeamSearchRules, Column, ColumnKind, Columns, translate

BEFORE_WORDS = 4
CUT_OFF = QT_TRANSLATE_NOOP("Workbench", "cut off when the engine stopped")


@dataclass(slots=True, weakref_slot=True)
class ContinuationGroup:
    """The running continuations of one place."""

    session: WholeSession  # the session in which they are saved
    new: NewNode  # the node to add for each
    kind: ColumnKind  # drawn, or found by a beam search
    wanted: int  # how many
    rules: BeamSearchRules = field(default_factory=BeamSearchRules)  # length penalty and early stopping of a beam search
    note: str = ""  # progress or fault, in words
    strands: list[Answer] = field(default_factory=list)  # the continuations that have a node already
    scores: list[float] = field(default_factory=list)  # of beams, in the order of `strands`
    beams: tuple[Column, ...] = ()  # the beams of a running search, best first
    running: bool = True
    ended: set[int] = field(default_factory=set)  # nodes of the strands that have ended
    reused: int = 0  # tokens of the prompt found in the cache
    computed: int = 0  # tokens of the prompt that were computed
    began: float = field(default_factory=time.monotonic)  # time when the model was ready

    def segments(self) -> list[PathSegment]:
        """The segments of the path before the place."""
        path = self.session.tree.path(self.new.parent_id)
        if path and self.new.at_token is not None:
            path[-1] = replace(path[-1], stop=self.new.at_token)
        return path

    def before(self) -> str:
        """The last words before the place."""
        text = ""
        for segment in reversed(self.segments()):
            text = content_of(self.session.segment_run(segment)) + text
            if segment.node.turn_start:
                break
        words = text.split()
        return ("… " if len(words) > BEFORE_WORDS else "") + " ".join(words[-BEFORE_WORDS:])

    def view(self) -> Columns:
        """The continuations as the window shows them."""
        columns = tuple(self._column(i, strand) for i, strand in enumerate(self.strands)) or self.beams
        return Columns(self.session.id, self.kind, self.before(), self.wanted, columns, self.running, self.note)

    def _column(self, place: int, strand: Answer) -> Column:
        running = self.running and strand.node_id not in self.ended
        note = (
            ""
            if running or strand.finish == "length"
            else strand.message or ending_note(strand.finish, incomplete=strand.incomplete)
        )
        return Column(
            strand.node_id,
            self.session.runs.get(strand.node_id, EMPTY),
            strand.logprob if strand.made else None,
            self.scores[place] if self.scores else None,
            running,
            note,
        )

    def say(self, words: str) -> None:
        """Sets the common note, and marks each continuation that an engine fault ended."""
        self.note = words
        for strand in self.strands:
            if strand.finish == "engine_died":
                strand.message = translate("Workbench", CUT_OFF)

    def take(self, strand: Answer, run: TokenRun) -> bool:
        """Takes new tokens of one strand; returns whether it has ended."""
        ended = strand.take(run, time.monotonic())
        if ended:
            self.ended.add(strand.node_id)
        return ended


@dataclass(slots=True)
class Endings:
    """The last writes of several continuations, which can be retried together; none is written twice."""

    left: list[Ending]
    session: WholeSession

    @property
    def node_id(self) -> int:
        """The node of the first pending write."""
        return self.left[0].node_id if self.left else -1

    @property
    def texts(self) -> list[str]:
        """The texts of the pending writes."""
        return [ending.text for ending in self.left]

    async def save(self, store: SessionStore) -> None:
        """Runs all pending writes.

        Raises:
            StoreError: Some failed; they stay pending for the next call.
        """
        failed: list[Ending] = []
        fault: StoreError | None = None
        for ending in self.left:
            try:
                await ending.save(store)
            except StoreError as error:
                failed.append(ending)
                fault = error
            else:
                self.session.notes.pop(ending.node_id, None)
        self.left = failed
        if fault is not None:
            raise fault


SEARCHED_TOKENS = 32  # longest beam; one that is kept can be continued


def beam_options(asked: GenerationOptions, group: ContinuationGroup) -> BeamOptions:
    """Options of the beam search: grammar, end tokens and stop texts as for the session's answers."""
    return BeamOptions(
        width=group.wanted,
        length_penalty=group.rules.length_penalty,
        early_stopping=group.rules.early_stopping,
        max_tokens=SEARCHED_TOKENS,
        eos_token_ids=asked.eos_token_ids,  # including those of the chat format; None with a grammar
        ignore_eos=asked.ignore_eos,
        stop=asked.stop,
        grammar=asked.grammar,
        grammar_prefix=0 if asked.grammar is None else own_tokens_before(group),
    )


def own_tokens_before(group: ContinuationGroup) -> int:
    """The number of tokens of the answer before the place, without template tokens."""
    own = 0
    for segment in reversed(group.segments()):
        run = group.session.segment_run(segment)
        own += int((run.origin != int(Origin.TEMPLATE)).sum())
        if segment.node.turn_start:
            break
    return own


def unscored_run(model: LanguageModel, ids: Sequence[int]) -> TokenRun:
    """Sampled ids as a run without log-probabilities."""
    data = [b"" if model.is_eos(token) else model.decode_token(token) for token in ids]
    return TokenRun.unscored(ids, data, texts_of(data), Origin.SAMPLED)
