"""Tokens of the fake workbench: words, their ids, and numbers that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from runtime import Finish, Origin, TokenRun

OTHERS = (" Paris", " Rome", " Lisbon", " Kyoto", " Prague", " a", " the", " our", " some", " Oslo")
SHARES = (0.412, 0.221, 0.098, 0.061, 0.044, 0.032, 0.029, 0.02, 0.015, 0.01)


class Vocabulary:
    """Ids for words in the order of their use; `first`, the alternatives, have the first ids."""

    def __init__(self, first: Sequence[str] = OTHERS) -> None:
        self._ids: dict[str, int] = {}
        for word in first:
            self.id_of(word)

    def id_of(self, word: str) -> int:
        return self._ids.setdefault(word, 1000 + len(self._ids))

    def ids_with(self, text: str) -> list[int]:
        return [token_id for word, token_id in self._ids.items() if text.lower() in word.lower()]

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        known = {token_id: word.encode() for word, token_id in self._ids.items()}
        return [known.get(token_id, b"") for token_id in ids]


def run_of(
    vocabulary: Vocabulary, words: Sequence[str], bits: Sequence[float] | None = None, *, origin: Origin = Origin.SAMPLED
) -> TokenRun:
    """Tokens with a surprisal in bits each; the ten alternatives are always the same cities."""
    n = len(words)
    plain = TokenRun.unscored([vocabulary.id_of(w) for w in words], [w.encode() for w in words], words, origin)
    surprise = np.array(bits if bits is not None else [0.3] * n, np.float32)
    top = np.array([[vocabulary.id_of(w) for w in OTHERS]] * n, np.int32).reshape(n, len(OTHERS))
    return replace(
        plain,
        logprob=(-surprise * np.log(2)).astype(np.float32),
        rank=np.array([_rank(word, b) for word, b in zip(words, surprise, strict=True)], np.int32),
        entropy=(surprise * 0.5 + 0.4).astype(np.float32),
        top_ids=top,
        top_logprobs=np.log(np.array([SHARES] * n, np.float32)).reshape(n, len(OTHERS)),
        covered_mass=np.full(n, sum(SHARES), np.float32),
        draw=np.full(n, 0.783 if origin is Origin.SAMPLED else np.nan, np.float32),
    )


def _rank(word: str, bits: float) -> int:
    return OTHERS.index(word) + 1 if word in OTHERS else 1 + int(bits)


def ended(run: TokenRun, finish: Finish) -> TokenRun:
    """The same run, with a finish reason on its last token."""
    marks = run.finish.copy()
    marks[-1:] = int(finish)
    return replace(run, finish=marks)
