"""Models under test for sessions, with their expected numbers, in this process and behind the pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime import GenerationOptions, LanguageModel, SamplingOptions, load, spawn
from runtime.backends.fake import Behaviour
from runtime.records import Float32
from runtime.session.session import Session
from tests.fakes import reference
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.tiny_models import tiny_path

GREEDY = SamplingOptions(temperature=0.0)
CASES = (
    ("fake", "attention"),
    ("fake", "recurrent"),
    ("hf", "llama"),
    ("hf", "gemma3"),
    ("hf", "lfm2"),
    ("mlx", "llama"),
    ("mlx", "gemma3"),
    ("mlx", "lfm2"),
)


def greedy(n: int) -> GenerationOptions:
    return GenerationOptions(max_tokens=n, sampling=GREEDY, ignore_eos=True, top_k=3)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and its expected answers."""

    model: LanguageModel
    name: str
    toy: bool

    @property
    def recurrent(self) -> bool:
        return "recurrent" in self.model.info.attention_kinds

    def ids(self, seed: int, n: int) -> list[int]:
        return [int(i) for i in np.random.default_rng(seed).integers(0, 250, n)]

    def right(self, ids: Sequence[int]) -> Float32:
        """``(vocab,)`` log-probabilities after `ids`, computed alone and without a cache."""
        return reference(ids, self.name) if self.toy else expected(self.name, ids)[-1]

    def check(self, got: Any, ids: Sequence[int]) -> None:
        np.testing.assert_allclose(got, self.right(ids), atol=TOLERANCE, rtol=0)

    def computed(self) -> int:
        """Tokens pushed through the model since load."""
        self.settle()
        return self.model.metrics().tokens_computed

    def settle(self) -> None:
        """Waits until released and cancelled work has ended, so that the last metrics include it."""
        for _ in range(2):
            self.model.prefix_match([1])

    def plain(self, ids: Sequence[int], options: GenerationOptions) -> list[int]:
        """The ids that the model generates without a session."""
        return [record.token_id for record in self.model.generate_sync(ids, options)]


@contextmanager
def subject(backend: str, name: str, **options: Any) -> Iterator[Subject]:
    """One of `CASES`; no lease may be left at the end."""
    toy = backend == "fake"
    source: Any = (Behaviour(recurrent=name == "recurrent"), None) if toy else tiny_path(name)
    with load(source, backend=backend, threads=1, **options) as model:
        made = Subject(model, name, toy)
        yield made
        made.settle()
        report = model.cache_report()
        assert (report.leases, report.leased_bytes, report.pins) == (0, 0, 0)


@contextmanager
def piped(backend: str, name: str, **options: Any) -> Iterator[Subject]:
    """The same in an engine process; the fake's attention only."""
    toy = backend == "fake"
    client = asyncio.run(spawn("anything" if toy else tiny_path(name), backend, threads=1, **options))
    with client:
        made = Subject(client, name, toy)
        yield made
        made.settle()
        report = client.cache_report()
        assert (report.leases, report.leased_bytes, report.pins) == (0, 0, 0)


async def drawn(session: Session, options: GenerationOptions) -> list[int]:
    """The ids of a decode."""
    return [record.token_id async for record in session.decode(options)]
