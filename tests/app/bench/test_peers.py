"""The peers' counts, on requests small enough to count by hand, and their numbers against ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from app.bench.measure import Subject
from app.bench.ours import Ours
from app.bench.peers.mlx_prompt_cache import MlxPromptCache
from app.bench.peers.one_cache import OneCache
from app.bench.peers.stateless import Stateless
from app.bench.tiny import make_tiny

A, B, C = [1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3, 4, 5, 6]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny("qwen3", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def open_subject() -> Iterator[Callable[[Subject], Subject]]:
    opened: list[Subject] = []

    def remember(subject: Subject) -> Subject:
        opened.append(subject)
        return subject

    yield remember
    for subject in opened:
        subject.close()


Open = Callable[[Subject], Subject]


def test_stateless_pushes_everything_every_time(folder: Path, open_subject: Open) -> None:
    subject = open_subject(Stateless(folder))
    subject.logprobs([A, B, A])
    assert subject.tokens_computed == 5 + 4 + 5
    subject.answers([A], 3)
    assert subject.tokens_computed == 14 + 5 + 2


def test_one_cache_pushes_what_the_last_request_did_not(folder: Path, open_subject: Open) -> None:
    subject = open_subject(OneCache(folder))
    subject.logprobs([A, B])  # five, then one after the common three
    assert subject.tokens_computed == 5 + 1
    subject.logprobs([B])  # its last token again: the distribution was not kept
    assert subject.tokens_computed == 6 + 1
    [answer] = subject.answers([C], 3)  # three after the common three, and two of the answer
    assert subject.tokens_computed == 7 + 3 + 2
    subject.logprobs([[*C, *answer, 7]])  # the answer's last token and the new one
    assert subject.tokens_computed == 12 + 2
    subject.forget()
    subject.logprobs([A])
    assert subject.tokens_computed == 14 + 5


def test_mlx_prompt_cache_finds_what_it_generated(folder: Path, open_subject: Open) -> None:
    subject = open_subject(MlxPromptCache(folder))
    [answer] = subject.answers([C], 3)  # its generator pushes the last token too
    assert subject.tokens_computed == 6 + 3
    subject.answers([[*C, *answer, 7, 8]], 2)
    assert subject.tokens_computed == 9 + 2 + 2
    subject.forget()
    subject.answers([C], 1)
    assert subject.tokens_computed == 13 + 6 + 1


@pytest.mark.parametrize(("backend", "peers"), [("hf", (Stateless, OneCache)), ("mlx", (MlxPromptCache,))])
def test_peers_give_our_numbers(
    folder: Path, open_subject: Open, backend: str, peers: tuple[Callable[[Path], Subject], ...]
) -> None:
    ours = open_subject(Ours(folder, backend))
    for make in peers:
        peer = open_subject(make(folder))
        for _ in range(2):  # cold, then from what it keeps
            assert np.abs(peer.logprobs([A, B, C]) - ours.logprobs([A, B, C])).max() < 1e-4
            assert peer.answers([A, B], 4) == ours.answers([A, B], 4)
