"""Embeddings are the pooled last hidden states of transformers, whatever is embedded beside them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import ContextOverflowError, GenerationOptions, InvalidRequestError, LanguageModel, load
from runtime.numerics.pooling import POOLINGS
from runtime.records import Float32
from runtime.shelf.source import resolve
from tests.fakes import settled
from tests.runtime.backends.reference import in_turn
from tests.tiny_models import tiny_path

NAMES = ("llama", "gpt2", "gemma3", "mistral", "mamba", "lfm2", "falcon_h1")
TOLERANCE = 1e-5  # of a vector of length 1, compared with transformers
BATCHED = 5e-6  # alone compared with a batch
TEXTS = [
    "The parser reads a file.",
    "x",
    "def f(a):\n    return a * 2",
    "class Node: pass",
    "The parser reads a file.",
    "é 日本",
]
LONG = "A function call is a name, then arguments in parentheses; keywords come after positions. " * 12  # past any window


@functools.cache
def _model(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_path(name), dtype=torch.float32).eval()


@functools.cache
def expected(name: str, ids: tuple[int, ...], pooling: str) -> Float32:
    """The vector of one text alone, by transformers: the last of its hidden states is after the final norm."""
    import torch

    with torch.inference_mode():
        states = _model(name)(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states[-1][0]
    pooled = {"last": states[-1], "cls": states[0], "mean": states.mean(0), "max": states.max(0).values}[pooling]
    unit: Float32 = torch.nn.functional.normalize(pooled, dim=0).numpy()
    return unit


@pytest.fixture(scope="module", params=in_turn(NAMES))
def case(request: pytest.FixtureRequest) -> Iterator[tuple[LanguageModel, str]]:
    backend, name = request.param
    with load(tiny_path(name), backend, kv_cache_bytes=32 << 20) as model:
        yield model, name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_the_pooled_hidden_states_of_transformers(case: tuple[LanguageModel, str], pooling: Any) -> None:
    model, name = case
    texts = [*TEXTS, LONG]
    got = model.embed_sync(texts, pooling)
    want = np.stack([expected(name, tuple(model.tokenize(text)), pooling) for text in texts])
    assert got.shape == (7, model.info.hidden_size)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-6)


@pytest.mark.sampled(1)
def test_a_long_text_embedded_in_chunks_equals_the_whole_and_leaves_no_pack(case: tuple[LanguageModel, str]) -> None:
    # given chunks so small that the long text takes several
    measured, name = case
    ids = tuple(measured.tokenize(LONG))
    chunk = max(len(ids) // 3, 33)
    with load(tiny_path(name), measured.info.backend, kv_cache_bytes=32 << 20, prefill_chunk_tokens=chunk) as model:
        before, report = settled(model)
        held = report.bytes
        for pooling in ("last", "mean"):
            got = model.embed_sync([LONG, "x"], pooling)
            np.testing.assert_allclose(got[0], expected(name, ids, pooling), atol=TOLERANCE, rtol=0)
        # then its pack is closed and the trie holds what it held before
        metrics, report = settled(model)
        assert metrics.tokens_computed - before.tokens_computed == 2 * (len(ids) + 1)
        assert metrics.forward_calls - before.forward_calls >= 2 * 4
        assert report.bytes == held
        assert report.working_bytes == report.leases == 0


def test_vectors_alone_and_in_a_batch_are_equal(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    together = model.embed_sync(TEXTS)
    alone = np.concatenate([model.embed_sync([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=BATCHED, rtol=0)
    assert (together[0] == together[4]).all()


@pytest.mark.parametrize("case", [("hf", "llama"), ("mlx", "llama")], indirect=True, ids="-".join, scope="module")
def test_bad_input_is_refused_before_compute(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    before = model.metrics().tokens_computed
    too_long = "word " * (model.info.context_length + 1) if model.info.context_length < 10_000 else None
    for texts, pooling, words in (
        ([], "last", "no texts"),
        ("one text", "last", r"embed\(\[text\]\)"),
        (["a", "b", ""], "last", r"texts\[2\] is empty"),
        (["a", 7], "last", r"texts\[1\] is no text but int"),
        (["a"], "avg", "unknown pooling 'avg'"),
        (["a"], "meen", "did you mean 'mean'"),
        (["a"], ["mean"], "unknown pooling"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            model.embed_sync(texts, pooling)  # type: ignore[arg-type]  # on purpose
    if too_long is not None:
        with pytest.raises(ContextOverflowError, match=r"texts\[1\]: .* tokens do not fit") as caught:
            model.embed_sync(["a", too_long])
        assert (caught.value.stage, caught.value.limit) == ("texts[1]", model.info.context_length)
    assert settled(model)[0].tokens_computed == before


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_stream_beside_an_embed_and_the_vectors_are_the_same_as_alone(backend: str) -> None:
    texts = [f"Text number {i}, of some length or other." for i in range(60)]
    with load(tiny_path("llama"), backend, prefill_chunk_tokens=64) as model:
        prompt, options = model.tokenize("The parser"), GenerationOptions(max_tokens=40, seed=3, ignore_eos=True)
        alone = [(record.token_id, record.logprob or 0.0) for record in model.generate_sync(prompt, options)]
        vectors = model.embed_sync([*texts, LONG])

        async def both() -> tuple[list[Any], Float32]:
            stream = model.generate(prompt, options)
            first = await anext(stream)
            embedding = asyncio.create_task(model.embed([*texts, LONG]))
            said = [first] + [record async for record in stream]
            return [(record.token_id, record.logprob or 0.0) for record in said], await embedding

        said, beside = asyncio.run(both())
        assert [token for token, _ in said] == [token for token, _ in alone]
        np.testing.assert_allclose([p for _, p in said], [p for _, p in alone], atol=1e-4)
        np.testing.assert_allclose(beside, vectors, atol=BATCHED)
        assert settled(model)[1].leases == 0


def test_without_a_cache_the_vectors_are_the_same() -> None:
    with load(tiny_path("llama"), "hf") as model, load(tiny_path("llama"), "hf", cache=False) as bare:
        np.testing.assert_allclose(bare.embed_sync([*TEXTS, LONG]), model.embed_sync([*TEXTS, LONG]), atol=BATCHED)
        assert settled(bare)[1].working_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_of_smollm2_equal_those_of_transformers(pooling: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = resolve("smollm2")  # where it is missing, the error names the command that fetches it
    reference = AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()
    with load("smollm2", "hf", device="cpu") as model:
        got = model.embed_sync([*TEXTS, LONG], pooling)
        for vector, text in zip(got, [*TEXTS, LONG], strict=True):
            with torch.inference_mode():
                states = reference.model(torch.tensor([model.tokenize(text)])).last_hidden_state[0]
            pooled = states[-1] if pooling == "last" else states.mean(0)
            np.testing.assert_allclose(vector, torch.nn.functional.normalize(pooled, dim=0).numpy(), atol=TOLERANCE)
