"""Drafts for speculation: from a smaller model with the same vocabulary, or from the text itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from runtime.backends.base import ROOT
from runtime.backends.packs.packed import Backend
from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.options.speculation import SpeculativeOptions
from runtime.records import Float32

log = logging.getLogger(__name__)
CHUNK_TOKENS = 256  # prompt tokens that the draft model reads per step of the model


class Drafter:
    """A draft model on the model's owner thread. Its KV counts against the same budget.

    Args:
        backend: The draft model.
        make_room: Called with the peak bytes of growing a pack; False: no draft for now.
    """

    def __init__(self, backend: Backend, make_room: Callable[[int], bool]) -> None:
        self._backend = backend
        self._make_room = make_room
        self._open: list[Draft] = []

    @property
    def nbytes(self) -> int:
        """Bytes of its packs."""
        return sum(self._backend.pack_bytes(draft.pack) for draft in self._open)

    def open(self) -> Draft:
        """Drafts for one generation."""
        draft = Draft(self._backend, self._make_room, self._open.remove)
        self._open.append(draft)
        return draft

    def unload(self) -> None:
        self._backend.unload()


class Draft:
    """The draft model's pack for one generation: a chain that is truncated to the accepted tokens."""

    def __init__(self, backend: Backend, make_room: Callable[[int], bool], closed: Callable[[Draft], None]) -> None:
        self._backend = backend
        self._make_room = make_room
        self._closed = closed
        self._text: list[int] = []
        self._pushed: list[int] = []  # tokens in the pack: some of the text, then drafted ones
        self._held = 0  # leading tokens of `_pushed` that are known to be text
        self._failed = False
        self.pack = backend.open_pack()

    def extend(self, tokens: Sequence[int]) -> None:
        self._text += tokens

    def propose(self, limit: int) -> list[int]:
        """The draft model's greedy continuation of the text, `limit` tokens.

        Empty while it reads the prompt, beyond its context, without memory, or once it has failed.
        """
        context = self._backend.info.context_length
        if limit < 1 or self._failed or len(self._text) + limit > context:
            return []
        try:
            return self._greedy(limit)
        except Exception:  # the border: a failing draft model must not end the generation
            log.exception("the draft model failed; this answer goes on without it")
            self._failed = True
            return []

    def _greedy(self, limit: int) -> list[int]:
        text, pushed = self._text, self._pushed
        most = min(len(pushed), len(text) - 1)  # the last token is always pushed: its logits give the draft
        while self._held < most and pushed[self._held] == text[self._held]:
            self._held += 1
        self._held = min(self._held, most)
        self._backend.truncate(self.pack, self._held)
        del pushed[self._held :]
        slots = len(text) + limit
        if slots > self._backend.capacity(self.pack):
            if not self._make_room(self._backend.resize_cost(self.pack, slots + CHUNK_TOKENS).moment):
                return []
            self._backend.resize(self.pack, slots + CHUNK_TOKENS)
        missing = text[self._held :]
        logits = self._push(missing[:CHUNK_TOKENS])
        if len(missing) > CHUNK_TOKENS:
            return []
        draft = [int(logits.argmax())]
        while len(draft) < limit:
            draft.append(int(self._push(draft[-1:]).argmax()))
        return draft

    def close(self) -> None:
        self._backend.close(self.pack)
        self._closed(self)

    def _push(self, tokens: Sequence[int]) -> Float32:
        """Appends a chain; the raw logits ``(vocab,)`` after it."""
        base, n = self._backend.size(self.pack), len(tokens)
        parents = np.arange(base - 1, base - 1 + n) if base else np.arange(ROOT, n - 1)
        logits = self._backend.forward(self.pack, np.array(tokens, np.int64), parents, np.array([n - 1]))[1]
        self._pushed += tokens
        last: Float32 = logits[0]
        return last


class PromptLookup:
    """Prompt lookup decoding: drafts the tokens that followed the last occurrence of the text's final n-gram.

    After A. Saxena, 2023 (transformers' `prompt_lookup_num_tokens`), with an index of every n-gram by its last occurrence that
    has a continuation, instead of a search through the whole text at each step.

    Args:
        longest: Largest n; the longest matching n-gram wins.
        shortest: Smallest n.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its last occurrence

    def extend(self, tokens: Sequence[int]) -> None:
        text, after = self._text, self._after
        for token in tokens:
            place = len(text)
            for n in self._lengths:  # entered with the token that follows: every match has a continuation
                if n <= place:
                    after[tuple(text[place - n :])] = place
            text.append(token)

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may come next; empty without a match."""
        text = self._text
        for n in self._lengths:
            if n <= len(text):
                place = self._after.get(tuple(text[-n:]))
                if place is not None:
                    return text[place : place + limit]
        return []

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


def check_draft(draft: Backend, model: Backend, draft_bytes: Sequence[bytes], model_bytes: Sequence[bytes]) -> None:
    """Checks that a draft model can draft for a model.

    Raises:
        InvalidRequestError: The vocabularies differ; the message names the first differing id.
        UnsupportedFeatureError: One of them has recurrent state, which cannot be truncated.
    """
    name = draft.info.name
    for i, (a, b) in enumerate(zip(draft_bytes, model_bytes, strict=False)):
        if a != b:
            raise InvalidRequestError(
                f"draft_model {name!r} has another vocabulary than {model.info.name!r}: id {i} is {a!r} there and {b!r} here"
            )
    longer = draft_bytes if len(draft_bytes) > len(model_bytes) else model_bytes
    if any(longer[min(len(draft_bytes), len(model_bytes)) :]):
        raise InvalidRequestError(
            f"draft_model {name!r} has another vocabulary than {model.info.name!r}: "
            f"{len(draft_bytes):,} ids against {len(model_bytes):,}"
        )
    for backend in (draft, model):
        refuse_recurrent(backend.info.name, backend.info.attention_kinds)


def refuse_recurrent(name: str, attention_kinds: Sequence[str]) -> None:
    """Raises `UnsupportedFeatureError` for a model whose cache cannot be truncated."""
    if "recurrent" in attention_kinds:
        raise UnsupportedFeatureError(
            f"speculative decoding needs a cache that can be cut back, and {name!r} has recurrent state; "
            "leave `speculative` out (or take another draft model)"
        )


def check_speculative(options: SpeculativeOptions, info: ModelInfo) -> None:
    """Checks that a model can speculate with these options.

    Raises:
        UnsupportedFeatureError: It has recurrent state.
        InvalidRequestError: The draft method without a loaded draft model.
    """
    refuse_recurrent(info.name, info.attention_kinds)
    if options.method == "draft" and not info.options.get("draft_model"):
        raise InvalidRequestError(
            "speculative method 'draft' needs a draft model: load with draft_model=..., or take method='prompt_lookup'"
        )
