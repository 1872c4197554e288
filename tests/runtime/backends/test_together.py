"""One forward over several packs: every token has the numbers that it has alone; a failure leaves all packs as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime.backends.base import ROOT, Part
from runtime.errors import InvalidRequestError
from tests.runtime.backends.reference import Loaded, append, chain, log_softmax

NAMES = ("llama", "qwen3", "gpt2", "gemma3", "mistral", "phi3")
CASES = [("fake", "toy"), *((backend, name) for backend in ("hf", "mlx") for name in NAMES)]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    one = Loaded(*request.param)
    yield one
    one.backend.unload()


class Text:
    """A pack that holds the beginning of a text, and the part of it that comes next: a chain, or two branches."""

    def __init__(self, loaded: Loaded, seed: int, held: int, *tails: int) -> None:
        self.pack = loaded.backend.open_pack()
        ids = loaded.ids(seed, held + sum(tails))
        self.stem, self.tails = ids[:held], np.split(ids[held:], np.cumsum(tails)[:-1])
        at = ROOT
        for piece in np.array_split(self.stem, 2):
            if len(piece):
                at = int(append(loaded.backend, self.pack, piece, at)[0][-1])
        starts = held + np.cumsum([0, *tails[:-1]])
        parents = np.concatenate([chain(int(s), len(t), at) for s, t in zip(starts, self.tails, strict=True)])
        self.part = Part(self.pack, np.concatenate(self.tails), parents, np.arange(sum(tails)))

    def check(self, loaded: Loaded, logits: Any) -> None:
        for rows, tail in zip(np.split(logits, np.cumsum([len(t) for t in self.tails])[:-1]), self.tails, strict=True):
            path = [*self.stem.tolist(), *tail.tolist()]
            loaded.check(log_softmax(rows), path, np.arange(len(self.stem), len(path)))


@pytest.fixture
def texts(loaded: Loaded) -> Iterator[list[Text]]:
    """Beyond every window, from nothing, one token, branches of one stem, and a chain after a tree."""
    made = [
        Text(loaded, 1, 40, 1),
        Text(loaded, 2, 0, 23),
        Text(loaded, 3, 21, 4),
        Text(loaded, 4, 30, 2, 5),
        Text(loaded, 5, 0, 1),
        Text(loaded, 6, 18, 1, 1, 1),
    ]
    yield made
    for text in made:
        loaded.backend.close(text.pack)


@pytest.mark.sampled(1)
def test_each_part_is_what_it_is_alone(loaded: Loaded, texts: list[Text]) -> None:
    backend = loaded.backend
    assert backend.together
    before, sizes = backend.forwards, [backend.size(text.pack) for text in texts]
    logits = backend.begin([text.part for text in texts])()
    assert backend.forwards == before + 1
    for text, rows in zip(texts, np.split(logits, np.cumsum([len(t.part.want) for t in texts])[:-1]), strict=True):
        text.check(loaded, rows)
    # and what stands in the packs then is what a forward of their own leaves
    assert [backend.size(text.pack) for text in texts] == [n + len(t.part.tokens) for n, t in zip(sizes, texts, strict=True)]
    for text, size in zip(texts, sizes, strict=True):
        tail = text.tails[0]
        _, more = append(backend, text.pack, loaded.ids(9, 3), size + len(tail) - 1)
        path = [*text.stem.tolist(), *tail.tolist(), *loaded.ids(9, 3).tolist()]
        loaded.check(more, path, np.arange(len(path) - 3, len(path)))


def test_only_wanted_rows_come_back(loaded: Loaded, texts: list[Text]) -> None:
    parts = [
        Part(t.pack, t.part.tokens, t.part.parents, t.part.want[-1:] if i % 2 else t.part.want[:0]) for i, t in enumerate(texts)
    ]
    logits = loaded.backend.begin(parts)()
    assert logits.shape == (3, loaded.backend.info.vocab_size)
    for row, text in zip(logits, texts[1::2], strict=True):
        path = [*text.stem.tolist(), *text.tails[-1].tolist()]
        loaded.check(log_softmax(row), path, len(path) - 1)


def test_a_failure_leaves_every_pack_as_it_was(loaded: Loaded, texts: list[Text]) -> None:
    backend, sizes = loaded.backend, [loaded.backend.size(text.pack) for text in texts]
    bad = Part(texts[-1].pack, np.array([10**6]), np.array([0]), np.array([0]))
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        backend.begin([*(text.part for text in texts[:-1]), bad])
    assert [backend.size(text.pack) for text in texts] == sizes
    text = texts[0]
    _, rows = append(backend, text.pack, text.tails[0], len(text.stem) - 1)
    loaded.check(rows, [*text.stem.tolist(), *text.tails[0].tolist()], [len(text.stem)])


def test_what_is_prepared_before_the_tokens_are_known_is_the_same(loaded: Loaded, texts: list[Text]) -> None:
    backend = loaded.backend
    for text in texts:
        backend.resize(text.pack, 64)
    blank = [Part(t.pack, np.zeros(len(t.part.tokens), np.int64), t.part.parents, t.part.want) for t in texts]
    begin = backend.prepare(blank)
    assert (begin is not None) == backend.overlaps
    if begin is not None:
        logits = begin(np.concatenate([text.part.tokens for text in texts]))()
        for text, rows in zip(texts, np.split(logits, np.cumsum([len(t.part.want) for t in texts])[:-1]), strict=True):
            text.check(loaded, rows)
