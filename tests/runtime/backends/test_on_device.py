"""Logits that stay on the device: scores equal those of the host, ties are ordered by id, and few numbers are transferred.

On a CPU neither library keeps logits on the device, since numpy is faster there. These tests switch it on for both.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from runtime import (
    BeamOptions,
    GenerationOptions,
    Grammar,
    LanguageModel,
    SamplingOptions,
    SpeculativeOptions,
    TokenRecord,
    load,
)
from runtime.backends.base import ROOT, PackTokens
from runtime.backends.hf.logits import TorchLogits
from runtime.backends.mlx.logits import MlxLogits, as_on_host
from runtime.backends.packs.logits import DeviceLogits
from runtime.backends.registry import register_backend, resolve_backend, unregister_backend
from runtime.loading.model_folder import ModelFolder
from runtime.numerics.ranking import RankedRows, RankRequest
from runtime.numerics.scoring import score_logits
from runtime.options.load import LoadOptions
from runtime.scheduler.prefill.distributions import ChunkLogits, normalise
from tests.fakes import settled
from tests.runtime.backends.reference import Loaded, chain, log_softmax, random_ids
from tests.tiny_models import tiny_path

DEVICES = [
    "mlx",
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]),
]


WIDE = 128_256  # entries of the large vocabulary
LIKELY = slice(5, 25)  # the likeliest tokens after most texts


def staying_logits(raw: np.ndarray[Any, np.dtype[np.float32]], device: str) -> DeviceLogits:
    """Rows held by one of the libraries."""
    if device == "mlx":
        return MlxLogits(mx.array(raw), nullcontext)
    return TorchLogits(torch.from_numpy(raw).to(device), nullcontext)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", [0, 1, 10, 60])
@pytest.mark.parametrize("vocab", [50, 4000])
def test_device_scores_equal_those_of_the_host(vocab: int, k: int, device: str) -> None:
    # given rows with many ties, as 16 bits produce them, one flat row and two that are not finite
    rng = np.random.default_rng(vocab + k)
    raw = (np.round(rng.normal(0, 4, (40, vocab)) * 4) / 4).astype(np.float32)
    raw[3], raw[5, 7], raw[6, 2] = 1.5, np.nan, np.inf
    targets = rng.integers(0, vocab, 40).astype(np.int32)
    chosen = np.array([0, 1, 3, 5, 6, 20, 39])
    # when some of them are scored on the device
    scores, finite = staying_logits(raw, device).score(chosen, targets[chosen], k)
    # then the scores equal those of the host
    expected, numbers = score_logits(raw[chosen], targets[chosen], k)
    assert finite.tolist() == numbers.tolist() == [True, True, True, False, False, True, True]
    np.testing.assert_array_equal(scores.top_ids[finite], expected.top_ids[finite])
    np.testing.assert_array_equal(scores.rank[finite], expected.rank[finite])
    for name in ("logprob", "entropy", "top_logprobs", "covered_mass"):
        np.testing.assert_allclose(getattr(scores, name)[finite], getattr(expected, name)[finite], atol=3e-5, rtol=0)


def test_logits_stay_on_a_device_only_if_its_scores_agree_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(as_on_host(vocab) for vocab in (7, 1000, 49_152, 128_256))
    # but not where a kernel is wrong, even if only the entries read by draws are affected
    for module, name, wrong in ((mx, "exp", mx.sigmoid), (MlxLogits, "ranked", one_off)):
        as_on_host.cache_clear()
        with monkeypatch.context() as broken:
            broken.setattr(module, name, wrong)
            assert not as_on_host(1000)
    as_on_host.cache_clear()


def one_off(logits: MlxLogits, request: RankRequest) -> RankedRows:
    """Ranked rows with wrong ids, shifted by one place."""
    ranked = logits.begin_ranked(request)()
    for row in ranked.rows:
        row.ids = np.roll(row.ids, 1)
    return ranked


@pytest.mark.parametrize("library", ["hf", "mlx"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
def test_a_forward_with_logits_on_the_device_equals_the_plain_one(name: str, library: str) -> None:
    # given two packs with a text each, whose logits stay on the device
    one = Loaded(library, name)
    backend, texts = one.backend, [one.ids(1, 40), one.ids(2, 23)]
    packs = [backend.open_pack() for _ in texts]
    parts = [PackTokens(p, t, chain(0, len(t), ROOT), np.arange(len(t))) for p, t in zip(packs, texts, strict=True)]
    logits = backend.forward_on_device(parts)
    # then rows and scores equal those of transformers' forward
    assert len(logits) == 63
    one.check(log_softmax(logits.rows(np.arange(40))), texts[0])
    scores, finite = logits.score(np.arange(40, 62), texts[1][1:].astype(np.int32), 5)
    assert finite.all()
    expected = one.expected(texts[1].tolist())
    np.testing.assert_allclose(scores.logprob, expected[np.arange(22), texts[1][1:]], atol=one.tolerance, rtol=0)
    np.testing.assert_allclose(scores.top_logprobs, -np.sort(-expected[:22])[:, :5], atol=one.tolerance, rtol=0)
    # and the packs can be continued
    _, more = backend.forward(packs[0], one.ids(3, 2), chain(40, 2, 39), np.arange(2))
    one.check(log_softmax(more), [*texts[0], *one.ids(3, 2)], [-2, -1])
    backend.unload()


@contextmanager
def staying(library: str, path: Path, **more: Any) -> Iterator[LanguageModel]:
    """A model whose logits stay on the device, as on a GPU."""

    def staying_backend(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> Any:
        backend: Any = resolve_backend(library)(source, options)
        backend.on_device = True
        return backend

    register_backend("staying", staying_backend)
    with load(path, "staying", device="cpu", **more) as model:
        yield model
    unregister_backend("staying")


@pytest.fixture(params=["hf", "mlx"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LanguageModel, LanguageModel]]:
    path = tiny_path("llama")
    with load(path, request.param, device="cpu") as plain, staying(request.param, path) as model:
        yield plain, model


def test_a_model_with_logits_on_the_device_scores_like_the_plain_one(pair: tuple[LanguageModel, LanguageModel]) -> None:
    plain, model = pair
    texts = [random_ids(seed, n, 1000).tolist() for seed, n in ((1, 700), (2, 30), (3, 2))]
    texts.append([*texts[0][:650], *random_ids(4, 20, 1000).tolist()])  # a branch of a cached stem
    for text in texts:
        one, other = plain.score_sync(text, top_k=4), model.score_sync(text, top_k=4)
        ranks = np.array([(a.rank, b.rank) for a, b in zip(one[1:], other[1:], strict=True)])
        assert np.abs(np.diff(ranks)).sum() <= 1  # tokens that tie within rounding may swap ranks
        assert [record.top_ids for record in one] == [record.top_ids for record in other]
        known = [(a.logprob, b.logprob) for a, b in zip(one, other, strict=True) if a.logprob is not None]
        assert len(known) == len(text) - 1
        assert np.abs(np.diff(np.array(known, np.float64))).max() <= 1e-5
    assert model.metrics().tokens_computed == plain.metrics().tokens_computed
    # and the log-probabilities after a scored text, whose row stayed on the device, are the same
    np.testing.assert_allclose(
        model.next_token_logprobs_sync(texts[0]), plain.next_token_logprobs_sync(texts[0]), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [50, 4000])
def test_device_distributions_equal_those_of_the_host(vocab: int, device: str) -> None:
    # given rows with many ties, one flat row, one with an infinity, and different temperatures
    rng = np.random.default_rng(vocab)
    raw = (np.round(rng.normal(0, 4, (12, vocab)) * 4) / 4).astype(np.float32)
    raw[3], raw[5, 2] = 1.5, np.inf
    temperatures = np.where(np.arange(12) % 2, 0.7, 1.0)
    # when their likeliest entries are transferred
    logits = staying_logits(raw, device)
    ranked, shift, finite = logits.ranked(RankRequest(20, tuple(temperatures)))
    # then all values equal those of the host
    expected = normalise(raw.copy(), entropy=True, temperatures=temperatures.tolist())
    assert finite.tolist() == expected.finite.tolist()
    np.testing.assert_allclose(shift[finite], expected.shift[finite], atol=3e-5, rtol=0)
    for own, other in zip(np.array(ranked)[finite], np.array(expected.ranked)[finite], strict=True):
        assert own.entropy == pytest.approx(other.entropy, abs=3e-5)
        assert own.mass == pytest.approx(other.mass, rel=1e-5)
        if other.heated is not None:
            assert own.heated == (other.heated[0], pytest.approx(other.heated[1], rel=1e-5))
        assert len(own.ids) <= 20 or vocab == 50
        # and so do the entries beyond them
        own.reach(40)
        other.reach(40)
        assert own.ids[:40].tolist() == other.ids[:40].tolist()
        np.testing.assert_allclose(own.row, other.row, atol=3e-5, rtol=0)
        assert own.place_of(int(own.ids[3]))[0] == own.values[3]


SAMPLERS = {
    "greedy": SamplingOptions(temperature=0.0),
    "warm": SamplingOptions(temperature=1.3, top_k=0, top_p=1.0, min_p=0.0),
    "cut": SamplingOptions(temperature=0.8, top_k=30, top_p=0.9, min_p=0.05),
    "penalties": SamplingOptions(temperature=0.9, repetition_penalty=1.2),
    "typical": SamplingOptions(temperature=1.0, typical_p=0.8, xtc_probability=0.5),
    "few": SamplingOptions(temperature=1.2, top_k=40, top_p=1.0, min_p=0.0),
    "least": SamplingOptions(temperature=1.2, top_k=0, top_p=1.0, min_p=0.02),
    "most": SamplingOptions(temperature=1.5, top_k=0, top_p=0.98, min_p=0.0),
    "dry": SamplingOptions(temperature=1.0, dry_multiplier=0.8, presence_penalty=0.3),
    "biased": SamplingOptions(temperature=1.0, logit_bias={7: 4.0}, banned_tokens=(3, 11)),
}


async def answers(model: LanguageModel, texts: list[list[int]], options: GenerationOptions) -> list[list[TokenRecord]]:
    """The answers to all texts, generated concurrently."""

    async def answer(text: list[int]) -> list[TokenRecord]:
        return [record async for record in model.generate(text, options)]

    return list(await asyncio.gather(*map(answer, texts)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampling", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("stages", [False, True])
def test_a_model_with_logits_on_the_device_answers_like_the_plain_one(
    pair: tuple[LanguageModel, LanguageModel], sampling: SamplingOptions, stages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given streams of two texts, with or without stages
    plain, model = pair
    monkeypatch.setattr("runtime.scheduler.decode.decoding.DRAW_HEAD", 8)
    options = GenerationOptions(max_tokens=12, sampling=sampling, ignore_eos=True, seed=3, top_k=4, stages=stages)
    texts = [random_ids(seed, 20, 1000).tolist() for seed in (5, 6)]
    # when their rows stay on the device
    here, there = (asyncio.run(answers(one, texts, options)) for one in (plain, model))
    # then tokens and records equal those of rows transferred to the host
    for one, other in zip(here, there, strict=True):
        assert [r.token_id for r in one] == [r.token_id for r in other]
        assert [r.top_ids for r in one] == [r.top_ids for r in other]
        assert [r.rank for r in one] == [r.rank for r in other]
        np.testing.assert_allclose(numbers_of(one), numbers_of(other), atol=1e-5, rtol=0)


def numbers_of(run: list[TokenRecord]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``(tokens, 2 + k)``: log-probability, entropy and top log-probabilities of records."""
    return np.array([[record.logprob, record.entropy, *record.top_logprobs] for record in run], np.float64)


@pytest.mark.sampled(1)
def test_mixed_streams_answer_like_the_plain_model(pair: tuple[LanguageModel, LanguageModel]) -> None:
    # given streams of one text with a grammar, a penalty and two plain ones, which share forwards until they differ
    text = random_ids(8, 20, 1000).tolist()
    grammars = [Grammar.regex("[ab]{9}"), None, None, None]
    samplings = [SAMPLERS[name] for name in ("warm", "penalties", "cut", "cut")]

    async def together(model: LanguageModel) -> list[list[TokenRecord]]:
        each = [
            GenerationOptions(max_tokens=12, sampling=sampling, ignore_eos=grammar is None, seed=seed, top_k=4, grammar=grammar)
            for seed, (sampling, grammar) in enumerate(zip(samplings, grammars, strict=True))
        ]
        return [run for one in await asyncio.gather(*(answers(model, [text], options) for options in each)) for run in one]

    for one, other in zip(*(asyncio.run(together(model)) for model in pair), strict=True):
        assert [(r.token_id, r.top_ids) for r in one] == [(r.token_id, r.top_ids) for r in other]
        np.testing.assert_allclose(numbers_of(one), numbers_of(other), atol=1e-5, rtol=0)


@pytest.mark.parametrize("library", ["hf", "mlx"])
def test_rows_that_share_a_token_are_transferred_once(library: str, wide: Path, crossed: list[int]) -> None:
    # given streams of one text and one seed; the penalties of the last one read whole rows
    text = random_ids(8, 20, 1000).tolist()
    samplings = [SAMPLERS["greedy"], SAMPLERS["greedy"], SAMPLERS["penalties"]]

    async def together(model: LanguageModel) -> list[list[TokenRecord]]:
        each = [GenerationOptions(max_tokens=12, sampling=sampling, ignore_eos=True, seed=3) for sampling in samplings]
        return [run for one in await asyncio.gather(*(answers(model, [text], options) for options in each)) for run in one]

    with load(wide, library, device="cpu") as plain:
        expected, computed = asyncio.run(together(plain)), plain.metrics().tokens_computed
    with staying(library, wide) as model:
        model.next_token_logprobs_sync(text)
        crossed.clear()
        runs = asyncio.run(together(model))
        # then nothing is computed twice, and no row is transferred separately
        assert model.metrics().tokens_computed == computed
    assert [[r.token_id for r in run] for run in runs] == [[r.token_id for r in run] for run in expected]
    assert len(crossed) <= {"hf": 12, "mlx": 24}[library]


@pytest.mark.parametrize(
    "options",
    [
        BeamOptions(width=3, max_tokens=8, ignore_eos=True),
        BeamOptions(width=80, max_tokens=3, top_k=0, ignore_eos=True),
        BeamOptions(width=3, max_tokens=8, stop=("e", "a")),
        BeamOptions(width=3, max_tokens=8, grammar=Grammar.regex("[ab]{9}")),
    ],
    ids=["plain", "many", "stops", "grammar"],
)
def test_beams_with_logits_on_the_device_equal_the_plain_ones(
    pair: tuple[LanguageModel, LanguageModel], options: BeamOptions
) -> None:
    text = random_ids(9, 20, 1000).tolist()
    here, there = (asyncio.run(model.beam_generate(text, options)) for model in pair)
    for one, other in zip(here, there, strict=True):
        assert (list(one.ids), one.finish_reason) == (list(other.ids), other.finish_reason)
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert [r.top_ids for r in one.run] == [r.top_ids for r in other.run]
        np.testing.assert_allclose(numbers_of(list(one.run)), numbers_of(list(other.run)), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama with a vocabulary of 128,256 entries; its tokenizer has 1,000."""
    folder = tmp_path_factory.mktemp("wide") / "llama"
    shutil.copytree(tiny_path("llama"), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": WIDE}), "utf-8")
    tensors, rng = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        more = rng.normal(0, 0.2, (WIDE - len(tensors[name]), tensors[name].shape[1]))
        tensors[name] = np.concatenate([tensors[name], more.astype(np.float32)])
    tensors["lm_head.weight"][LIKELY] *= 20  # peaked distributions, as of real models
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class CrossingNumpy:
    """numpy, recording the bytes of the arrays that it makes from MLX arrays."""

    def __init__(self, crossed: list[int]) -> None:
        self._crossed = crossed

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def array(self, given: Any, *args: Any, **options: Any) -> Any:
        made = np.array(given, *args, **options)
        self._crossed += [made.nbytes] if isinstance(given, mx.array) else []
        return made


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each array of a library that is transferred to the host."""
    found: list[int] = []
    for module in ("backend", "logits"):
        monkeypatch.setattr(f"runtime.backends.mlx.{module}.np", CrossingNumpy(found))
    plain = torch.Tensor.cpu

    def cpu(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        found.append(tensor.nbytes)
        return plain(tensor, *args)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    return found


@pytest.mark.parametrize("library", ["hf", "mlx"])
def test_speculation_transfers_few_numbers_per_token(library: str, wide: Path, crossed: list[int]) -> None:
    # given a repetitive text, so that prompt lookup finds guesses
    text = [*range(WIDE)[LIKELY]] * 3
    plain = GenerationOptions(max_tokens=12, sampling=SAMPLERS["greedy"], ignore_eos=True)
    guessing = replace(plain, speculative=SpeculativeOptions())
    with load(wide, library, device="cpu") as one:
        (expected,) = asyncio.run(answers(one, [text], plain))
    with staying(library, wide) as model:
        model.next_token_logprobs_sync(text)
        before = model.metrics()
        crossed.clear()
        # when it is continued with speculation
        (run,) = asyncio.run(answers(model, [text], guessing))
        after = model.metrics()
    # then few numbers are transferred for each computed token, and the answer is the plain one
    assert after.tokens_drafted > 0
    assert 0 < sum(crossed) <= 2048 * (after.tokens_computed - before.tokens_computed)
    assert [(r.token_id, r.top_ids) for r in run] == [(r.token_id, r.top_ids) for r in expected]


@pytest.mark.parametrize("library", ["hf", "mlx"])
@pytest.mark.parametrize(("sampling", "streams"), [("greedy", 1), ("cut", 3), ("penalties", 1)])
def test_whole_rows_are_transferred_only_for_samplers_that_read_them(
    library: str, sampling: str, streams: int, wide: Path, crossed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given texts whose first tokens are drawn from rows already on the host
    texts = [random_ids(seed, 20, 1000).tolist() for seed in range(streams)]
    with staying(library, wide) as model:
        model.batch_next_token_logprobs_sync(texts)
        crossed.clear()
        # when twelve tokens of each are drawn
        options = GenerationOptions(max_tokens=12, sampling=SAMPLERS[sampling], ignore_eos=True, seed=3)
        runs = asyncio.run(answers(model, texts, options))
    # then whole rows are transferred only where the sampler reads them
    assert [len(run) for run in runs] == [12] * streams
    if sampling == "penalties":
        assert sum(crossed) == 11 * WIDE * 4
    else:
        assert 0 < sum(crossed) <= 11 * streams * 2048


@pytest.mark.parametrize("library", ["hf", "mlx"])
def test_a_whole_row_is_transferred_together_with_the_numbers_of_other_rows(
    library: str, wide: Path, crossed: list[int]
) -> None:
    # given a stream whose penalties read whole rows, and two whose draws do not, in one batch
    texts = [random_ids(seed, 20, 1000).tolist() for seed in range(3)]
    samplings = [SAMPLERS[name] for name in ("cut", "penalties", "greedy")]
    each = [GenerationOptions(max_tokens=12, sampling=one, ignore_eos=True, seed=3) for one in samplings]

    async def together(model: LanguageModel) -> list[list[list[TokenRecord]]]:
        return list(await asyncio.gather(*(answers(model, [text], options) for text, options in zip(texts, each, strict=True))))

    with staying(library, wide) as model:
        model.batch_next_token_logprobs_sync(texts)
        crossed.clear()
        runs = asyncio.run(together(model))
    # then each step transfers one row, together with the numbers of the others
    assert [len(run) for one in runs for run in one] == [12] * 3
    assert 11 * WIDE * 4 < sum(crossed) <= 11 * (WIDE * 4 + 3 * 2048)
    assert len([size for size in crossed if size >= WIDE * 4]) == 11
    assert len(crossed) <= {"hf": 12, "mlx": 24}[library]


@pytest.mark.parametrize("library", ["hf", "mlx"])
@pytest.mark.parametrize("stop", [(), ("nowhere",)])
def test_a_beam_search_transfers_few_numbers(
    library: str, stop: tuple[str, ...], wide: Path, crossed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given logits with ties, as 16 bits produce them
    for kind in (TorchLogits, MlxLogits):
        monkeypatch.setattr(kind, "__init__", rounded(kind.__init__))
    text = random_ids(1, 20, 1000).tolist()
    with staying(library, wide) as model:
        model.next_token_logprobs_sync(text)
        crossed.clear()
        # when five beams are searched for eight tokens
        found = asyncio.run(model.beam_generate(text, BeamOptions(width=5, max_tokens=8, ignore_eos=True, stop=stop)))
    assert len(found[0].ids) == 8
    assert 0 < sum(crossed) <= 7 * 5 * 2048


def rounded(plain: Any) -> Any:
    """A constructor of logits that rounds them to multiples of 1/8."""

    def construct(self: Any, logits: Any, computing: Any) -> None:
        plain(self, (logits * 8).round() / 8, computing)

    return construct


@pytest.mark.parametrize("library", ["hf", "mlx"])
@pytest.mark.parametrize("count", [30, 500])
def test_scoring_a_text_transfers_no_whole_row(library: str, count: int, wide: Path, crossed: list[int]) -> None:
    # given a text that is scored in one chunk, or in several
    text = random_ids(1, count, 1000).tolist()
    with load(wide, library, device="cpu") as one:
        expected, after = one.score_sync(text, 5), one.next_token_logprobs_sync(text)
    with staying(library, wide, prefill_chunk_tokens=100) as model:
        model.next_token_logprobs_sync(text[:20])
        crossed.clear()
        scored = model.score_sync(text, 5)
        assert 0 < sum(crossed) <= len(text) * 512
        # when the distribution after it is requested
        crossed.clear()
        before = model.metrics()
        likely = model.top_logprobs_sync(text, 3)
        assert not crossed
        row = model.next_token_logprobs_sync(text)
        # then the row that stayed on the device is transferred, without a forward
        assert crossed == [4 * WIDE]
        assert model.metrics().tokens_computed == before.tokens_computed
        assert before.kv_bytes >= 4 * WIDE  # a kept row counts towards the KV bytes
    assert [record.top_ids for record in scored] == [record.top_ids for record in expected]
    own, plain = (np.array([record.logprob for record in records[1:]], np.float64) for records in (scored, expected))
    np.testing.assert_allclose(own, plain, atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(row, after, atol=1e-4, rtol=1e-5)
    assert likely.ids.tolist() == np.argsort(-after, kind="stable")[:3].tolist()


@pytest.mark.parametrize("library", ["hf", "mlx"])
@pytest.mark.parametrize(("k", "chosen"), [(10, ()), (5, (7, 900, 128_000)), (1, tuple(range(60))), (40, ())])
def test_top_log_probabilities_transfer_few_numbers(
    library: str, k: int, chosen: tuple[int, ...], wide: Path, crossed: list[int]
) -> None:
    texts = [random_ids(seed, 20, 1000).tolist() for seed in range(4)]
    with load(wide, library, device="cpu") as one:
        expected = one.batch_top_logprobs_sync(texts, k, chosen=chosen)
    for kept in (None, 0, 2):
        # given a budget for all rows, for none or for few
        with staying(library, wide) as model:
            if kept is not None:
                model.keep_vectors(kept)
            model.next_token_logprobs_sync(texts[0][:3])
            crossed.clear()
            answered = model.batch_top_logprobs_sync(texts, k, chosen=chosen)
        # then whole rows are transferred only for a large k, and the chosen ids of all texts in one transfer
        assert len(crossed) <= 2
        if k > 32:
            assert sum(crossed) >= 4 * 4 * WIDE
        else:
            assert 0 < sum(crossed) <= 4 * 2048
        for own, other in zip(answered, expected, strict=True):
            assert own.ids.tolist() == other.ids.tolist()
            assert list(own.chosen) == list(other.chosen)
            np.testing.assert_allclose(own.logprobs, other.logprobs, atol=1e-4, rtol=1e-5)
            assert own.chosen == pytest.approx(other.chosen, abs=1e-4)
            assert own.tail_mass == pytest.approx(other.tail_mass, abs=1e-5)


@pytest.mark.parametrize("library", ["hf", "mlx"])
def test_rows_that_do_not_fit_the_budget_are_not_transferred_to_be_kept(library: str, wide: Path, crossed: list[int]) -> None:
    # given a budget for the vectors of two rows, and a forward with many more
    texts = [random_ids(seed, 6, 1000).tolist() for seed in range(40)]
    with staying(library, wide, kv_cache_bytes=32 * (2 * 4 * WIDE + 1000)) as model:
        model.next_token_logprobs_sync(texts[0][:3])
        crossed.clear()
        first = model.batch_top_logprobs_sync(texts, 3)
        assert max(crossed) < 4 * WIDE
        kept = first[-1].logprobs.copy()
        first[-1].logprobs[:] = 0.0  # a copy that belongs to the caller
        assert model.cache_report().vector_bytes <= 2 * 4 * WIDE + 1000
        # then the last rows are kept, and give the same answer again
        computed = model.metrics().tokens_computed
        again = model.top_logprobs_sync(texts[-1], 3)
        assert model.metrics().tokens_computed == computed
        assert again.ids.tolist() == first[-1].ids.tolist()
        np.testing.assert_array_equal(again.logprobs, kept)


@pytest.mark.parametrize("library", ["hf", "mlx"])
@pytest.mark.parametrize(("kept", "copied"), [(None, [1, 1]), (0, []), (1, [1, 1])], ids=["all", "none", "one"])
def test_kept_rows_are_copied_on_the_device(
    library: str, kept: int | None, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a short text that ends in the same forward as a chunk of a longer text
    texts = [random_ids(1, 300, 1000).tolist(), random_ids(2, 20, 1000).tolist()]
    taken: list[int] = []
    for kind in (TorchLogits, MlxLogits):
        monkeypatch.setattr(kind, "take", counting(kind.take, taken))
    with staying(library, tiny_path("llama"), prefill_chunk_tokens=100) as model:
        if kept is not None:
            model.keep_vectors(kept)
        model.batch_top_logprobs_sync(texts, 3)
        # then only the rows after the texts are copied, once each, and only if they are kept
        assert taken == copied
        assert settled(model)[1].vector_bytes == (2 if kept is None else kept) * 4 * model.info.vocab_size


def counting(plain: Any, taken: list[int]) -> Any:
    """`take`, recording the number of rows."""

    def take(self: Any, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        taken.append(len(chosen))
        return plain(self, chosen)

    return take


@pytest.mark.parametrize("library", ["hf", "mlx"])
def test_caching_kv_transfers_no_whole_row(library: str, wide: Path, crossed: list[int]) -> None:
    text = random_ids(1, 20, 1000).tolist()
    with staying(library, wide) as model:
        model.next_token_logprobs_sync([7])
        crossed.clear()
        model.cache_kv(text)
        assert 0 < sum(crossed) <= 2048
        # then its KV and the distribution after it are cached
        assert model.metrics().tokens_computed == 1 + len(text)
        model.next_token_logprobs_sync(text)
        assert model.metrics().tokens_computed == 1 + len(text)


@pytest.mark.parametrize("library", ["hf", "mlx"])
def test_the_row_of_the_first_token_is_transferred_with_its_numbers(library: str, wide: Path, crossed: list[int]) -> None:
    with staying(library, wide) as model:
        model.next_token_logprobs_sync([7])
        crossed.clear()
        options = GenerationOptions(max_tokens=1, sampling=SAMPLERS["warm"], ignore_eos=True, seed=3)
        asyncio.run(answers(model, [random_ids(1, 20, 1000).tolist()], options))
    assert len(crossed) == {"hf": 1, "mlx": 2}[library]
    assert sum(crossed) <= 4 * WIDE + 2048


@pytest.mark.parametrize("library", ["hf", "mlx"])
def test_scoring_a_growing_text_reuses_the_row_on_the_device(library: str, wide: Path, crossed: list[int]) -> None:
    text = random_ids(1, 60, 1000).tolist()
    with load(wide, library, device="cpu") as one:
        expected = one.score_sync(text, 5)
    with staying(library, wide) as model:
        model.next_token_logprobs_sync([7])
        crossed.clear()
        scored = [model.score_sync(text[:end], 5) for end in (20, 40, 60)][-1]
        assert max(crossed) < 4 * WIDE
        assert model.metrics().tokens_computed == 1 + 60
    assert [record.top_ids for record in scored] == [record.top_ids for record in expected]
    own, plain = (np.array([record.logprob for record in records[1:]], np.float64) for records in (scored, expected))
    np.testing.assert_allclose(own, plain, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_entries_of_rows_are_transferred_in_blocks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, ids = np.random.default_rng(3).normal(size=(7, 50)).astype(np.float32), np.array([4, 40, 9])
    monkeypatch.setattr("runtime.backends.packs.logits.NAMED_ENTRIES", 10)
    logits = staying_logits(raw, device)
    for row, asked in ((5, ids), (3, ids), (3, ids), (6, ids), (5, ids[1:]), (6, ids[1:]), (0, ids)):
        np.testing.assert_array_equal(logits.entries(row, asked), raw[row, asked])


@pytest.mark.parametrize("device", DEVICES)
def test_only_the_requested_row_is_transferred(device: str, crossed: list[int]) -> None:
    raw = np.random.default_rng(3).normal(size=(8, 200_000)).astype(np.float32)
    np.testing.assert_array_equal(staying_logits(raw, device).entries(3, np.arange(200_000)), raw[3])
    assert sum(crossed) == 4 * 200_000


@pytest.mark.parametrize("device", [*DEVICES, "host"])
def test_only_the_finiteness_of_rows_inside_a_path_is_kept(device: str) -> None:
    raw = np.random.default_rng(3).normal(size=(5, 50)).astype(np.float32)
    raw[3, 7] = np.inf
    logits = raw.copy() if device == "host" else staying_logits(raw.copy(), device)
    chunk = ChunkLogits(logits, {1: False, 4: False}, [0, 3], block_bytes=1 << 20)
    assert chunk.broken == {3}
    assert {row: own.memory.nbytes for row, own in chunk.after.items()} == dict.fromkeys((1, 4), 2 * 4 * 50)
    for row, own in chunk.after.items():
        np.testing.assert_allclose(own.logprobs(), log_softmax(raw[row]), atol=3e-5, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [20, 4000])
def test_rows_kept_on_the_device_answer_like_rows_on_the_host(vocab: int, device: str) -> None:
    # given rows with many ties, one flat row and two that are not finite
    raw = (np.round(np.random.default_rng(3).normal(0, 4, (6, vocab)) * 4) / 4).astype(np.float32)
    raw[2], raw[3, 1], raw[4, 9] = 1.5, np.inf, np.nan
    chunk = ChunkLogits(staying_logits(raw, device), {row: row in (1, 3) for row in range(6)}, block_bytes=1 << 20)
    here = ChunkLogits(raw, dict.fromkeys(range(6), True))
    assert chunk.broken == here.broken == {3, 4}
    assert chunk.after.keys() == here.after.keys() == {0, 1, 2, 5}
    # when some of them stay on the device
    memory = [own.memory for row, own in chunk.after.items() if row != 1]
    assert isinstance(chunk.after[1].memory, np.ndarray)
    assert {id(part) for part in memory} == {id(memory[0])}
    assert memory[0].nbytes == 4 * vocab * 4  # one separate copy of the four kept rows
    # then they answer as the rows on the host
    for row, own in chunk.after.items():
        other = here.after[row]
        np.testing.assert_allclose(own.logprobs(), other.logprobs(), atol=3e-5, rtol=0)
        alone = own.alone()
        np.testing.assert_array_equal(alone.logprobs(), own.logprobs())
        assert alone.memory.nbytes == 4 * vocab
        one, two = (each.score(np.array([17], np.int32), 5) for each in (own, other))
        assert (one.rank, one.top_ids.tolist()) == (two.rank, two.top_ids.tolist())
        np.testing.assert_allclose(one.logprob, two.logprob, atol=3e-5, rtol=0)
        for k in (0, 1, 20, 100):
            likely, expected = (each.likeliest(k, (3, 17)) for each in (own, other))
            assert likely.ids.tolist() == expected.ids.tolist()
            assert likely.chosen == pytest.approx(expected.chosen, abs=3e-5)
            assert likely.chosen == {token: own.logprobs()[token] for token in (3, 17)}  # bit for bit
            assert likely.tail_mass == pytest.approx(expected.tail_mass, abs=3e-5)
