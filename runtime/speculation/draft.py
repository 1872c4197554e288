"""Guesses from a smaller model that speaks the same tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from runtime.backends.base import ROOT
from runtime.backends.packs.packed import Backend
from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.records import Float32
from runtime.speculation.options import SpeculativeOptions

log = logging.getLogger(__name__)
CHUNK_TOKENS = 256  # of a prompt that the draft model reads between two steps of the model


class Drafter:
    """A draft model beside the model, on the same owner thread. Its KV counts against the same budget.

    Args:
        backend: The draft model.
        room: Asked for bytes before a pack grows; False: no guesses for now.
    """

    def __init__(self, backend: Backend, room: Callable[[int], bool]) -> None:
        self._backend = backend
        self._room = room
        self._open: list[Draft] = []

    @property
    def nbytes(self) -> int:
        """Bytes of its working packs."""
        return sum(self._backend.pack_bytes(draft.pack) for draft in self._open)

    def open(self) -> Draft:
        """Guesses for one generation."""
        draft = Draft(self._backend, self._room, self._open.remove)
        self._open.append(draft)
        return draft

    def unload(self) -> None:
        """Frees the draft model."""
        self._backend.unload()


class Draft:
    """The draft model's own pack of one generation: a chain that is cut back to what turned out to be said."""

    def __init__(self, backend: Backend, room: Callable[[int], bool], closed: Callable[[Draft], None]) -> None:
        self._backend = backend
        self._room = room
        self._closed = closed
        self._text: list[int] = []
        self._pushed: list[int] = []  # what stands in the pack: of the text, and guesses after it
        self._held = 0  # how much of that is known to be of the text
        self._failed = False
        self.pack = backend.open_pack()

    def extend(self, tokens: Sequence[int]) -> None:
        """The text has grown."""
        self._text += tokens

    def propose(self, limit: int) -> list[int]:
        """The `limit` tokens that the draft model finds likeliest, one after the other.

        None where none is wanted, while it is still reading the text, where there is no memory, or once it has failed.
        """
        context = self._backend.info.context_length
        if limit < 1 or self._failed or len(self._text) + limit > context:
            return []
        try:
            return self._guess(limit)
        except Exception:  # the border: a bad guesser must not end what it guesses for
            log.exception("the draft model failed; this answer goes on without it")
            self._failed = True
            return []

    def _guess(self, limit: int) -> list[int]:
        text, pushed = self._text, self._pushed
        most = min(len(pushed), len(text) - 1)  # the last token is always pushed, for what follows it
        while self._held < most and pushed[self._held] == text[self._held]:
            self._held += 1
        self._held = min(self._held, most)
        self._backend.truncate(self.pack, self._held)
        del pushed[self._held :]
        slots = len(text) + limit
        if slots > self._backend.capacity(self.pack):
            if not self._room(self._backend.resize_cost(self.pack, slots + CHUNK_TOKENS).moment):
                return []
            self._backend.resize(self.pack, slots + CHUNK_TOKENS)
        missing = text[self._held :]
        logits = self._push(missing[:CHUNK_TOKENS])
        if len(missing) > CHUNK_TOKENS:
            return []
        guesses = [int(logits.argmax())]
        while len(guesses) < limit:
            guesses.append(int(self._push(guesses[-1:]).argmax()))
        return guesses

    def close(self) -> None:
        """Frees the pack."""
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


def check_draft(draft: Backend, model: Backend, draft_bytes: Sequence[bytes], model_bytes: Sequence[bytes]) -> None:
    """Whether a draft model can guess for a model.

    Raises:
        InvalidRequestError: Another vocabulary: the first id that stands for other bytes is named.
        UnsupportedFeatureError: Recurrent state cannot be cut back.
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
    """Raises `UnsupportedFeatureError` for a model whose cache cannot be cut back."""
    if "recurrent" in attention_kinds:
        raise UnsupportedFeatureError(
            f"speculative decoding needs a cache that can be cut back, and {name!r} has recurrent state; "
            "leave `speculative` out (or take another draft model)"
        )


def check_speculative(options: SpeculativeOptions, info: ModelInfo) -> None:
    """Whether a model can speculate so.

    Raises:
        UnsupportedFeatureError: It has recurrent state.
        InvalidRequestError: A draft model is asked for, and none was loaded.
    """
    refuse_recurrent(info.name, info.attention_kinds)
    if options.method == "draft" and not info.options.get("draft_model"):
        raise InvalidRequestError(
            "speculative method 'draft' needs a draft model: load with draft_model=..., or take method='prompt_lookup'"
        )
