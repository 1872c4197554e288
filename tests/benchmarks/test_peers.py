"""The peers' counts, on requests small enough to count by hand, and their numbers against ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.measure import Subject
from benchmarks.ours import Ours, OurStreams
from benchmarks.peers.bare import log_softmax, records
from benchmarks.peers.mlx_peers import BareMlx, MlxPromptCache, MlxStreams
from benchmarks.peers.torch_peers import BareTorch, OneCache, Stateless, TorchStreams, torch_records
from benchmarks.tiny import make_tiny
from runtime import UnsupportedFeatureError

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


def test_one_cache_pushes_the_tokens_that_the_last_request_did_not(folder: Path, open_subject: Open) -> None:
    subject = open_subject(OneCache(folder))
    subject.logprobs([A, B])  # five, then one after the common three
    assert subject.tokens_computed == 5 + 1
    subject.logprobs([B])  # its last token again: the distribution was not cached
    assert subject.tokens_computed == 6 + 1
    [answer] = subject.answers([C], 3)  # three after the common three, and two of the answer
    assert subject.tokens_computed == 7 + 3 + 2
    subject.logprobs([[*C, *answer, 7]])  # the answer's last token and the new one
    assert subject.tokens_computed == 12 + 2
    subject.forget()
    subject.logprobs([A])
    assert subject.tokens_computed == 14 + 5


def test_mlx_prompt_cache_finds_its_generated_tokens(folder: Path, open_subject: Open) -> None:
    subject = open_subject(MlxPromptCache(folder))
    [answer] = subject.answers([C], 3)  # its generator pushes the last token too
    assert subject.tokens_computed == 6 + 3
    subject.answers([[*C, *answer, 7, 8]], 2)
    assert subject.tokens_computed == 9 + 2 + 2
    subject.forget()
    subject.answers([C], 1)
    assert subject.tokens_computed == 13 + 6 + 1


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "peers"), [("hf", (Stateless, OneCache)), ("mlx", (MlxPromptCache,))])
def test_peers_have_the_same_numbers(
    folder: Path, open_subject: Open, backend: str, peers: tuple[Callable[[Path], Subject], ...]
) -> None:
    ours = open_subject(Ours(folder, backend))
    for make in peers:
        peer = open_subject(make(folder))
        for _ in range(2):  # cold, then from its cache
            assert np.abs(peer.logprobs([A, B, C]) - ours.logprobs([A, B, C])).max() < 1e-4
            assert peer.answers([A, B], 4) == ours.answers([A, B], 4)


@pytest.mark.parametrize(("backend", "make"), [("hf", BareTorch), ("mlx", BareMlx)])
def test_bare_forwards_extend_and_copy_rows(
    folder: Path, open_subject: Open, backend: str, make: Callable[[Path], Subject]
) -> None:
    # given rows that grow by a token per call, after which some are copied and others dropped
    subject, ours = open_subject(make(folder)), open_subject(Ours(folder, backend))
    rounds = [
        [A],
        [A, A, A],  # the same three times: nothing to push
        [[*A, 7], [*A, 8], [*A, 9]],
        [[*A, 9, 1], [*A, 7, 2], [*A, 9, 3]],
    ]
    for contexts in rounds:
        assert np.abs(subject.logprobs(contexts) - ours.logprobs(contexts)).max() < 1e-4
    assert subject.tokens_computed == 5 + 0 + 3 + 3
    subject.forget()
    subject.logprobs([B])
    assert subject.tokens_computed == 11 + 4
    with pytest.raises(UnsupportedFeatureError, match="bare forwards"):
        subject.answers([A], 2)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "make"), [("hf", TorchStreams), ("mlx", MlxStreams)])
def test_every_stream_draws_the_same_tokens(folder: Path, backend: str, make: Callable[[Path], Any]) -> None:
    with closing(OurStreams(folder, backend)) as ours, closing(make(folder)) as peer:
        prompts = [A, [7, 7, 7, 7, 7], [9, 8, 7, 6, 5]]
        generate = peer.generate if backend == "hf" else peer.stream_generate
        one = [ours.decode([A], 6), ours.decode([A], 6, top_k=0), ours.decode([A], 6, warm=True)]
        one += [generate(A, 6, records=records) for records in (False, True)]
        one += [peer.loop([A], 6, records=records) for records in (False, True)]
        assert len({lap.outcome for lap in one}) == 1
        assert {lap.tokens for lap in one} == {5}  # the clock starts at the first
        three = [ours.decode(prompts, 6), peer.loop(prompts, 6, records=True)]
        assert three[0].outcome == three[1].outcome
        assert three[1].tokens == 3 * 5
        assert 0 < three[0].tokens <= 3 * 5  # others may have generated tokens when the last one starts
        assert ours.score(A).tokens == peer.score(A).tokens == 5
        assert peer.records(A)(6).tokens == 6


def test_records_of_both_libraries_are_equal() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 40), np.float32) * 4
    chosen = np.array([1, 39, 7])
    by_numpy = records(log_softmax(logits), chosen)
    by_torch = torch_records(torch.from_numpy(logits), torch.from_numpy(chosen))
    for a, b in zip(by_numpy, by_torch, strict=True):
        token, own, rank, entropy, ids, values, covered = a
        assert (token, rank, ids) == (b[0], b[2], b[4])
        np.testing.assert_allclose([own, entropy, *values, covered], [b[1], b[3], *b[5], b[6]], atol=1e-5)
