"""The CUDA paths: small forwards recorded as graphs, and chains with separate attention in one kernel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from runtime import load
from runtime.backends.base import ROOT
from runtime.backends.hf.backend import HfBackend
from runtime.backends.hf.backend import load as load_hf
from runtime.backends.packs.tree import Int64
from runtime.loading.model_folder import ModelFolder
from runtime.options.load import LoadOptions
from runtime.records import Float32
from tests.runtime.backends.reference import Loaded, append, chain, expected, log_softmax, random_ids
from tests.tiny_models import tiny_folder, tiny_path

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")]

STEPS = 12  # of a decode: more than the number after which a backend records the forward


@pytest.fixture(params=["llama", "gpt2", "gemma3", "mistral"])
def one(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    made = Loaded("hf", request.param)
    yield made
    made.backend.unload()


@pytest.fixture
def half() -> Iterator[HfBackend]:
    made = load_hf(folder(), LoadOptions(dtype="bfloat16"))
    yield made
    made.unload()


def folder() -> ModelFolder:
    return tiny_folder("llama")


def started(backend: Any, texts: Sequence[Int64]) -> tuple[Any, Int64]:
    """A pack with unrelated texts, and the last slot of each."""
    pack = backend.open_pack()
    for text in texts:
        append(backend, pack, text)
    return pack, np.cumsum([len(text) for text in texts]) - 1


def decoded(backend: Any, pack: Any, tips: Int64, new: Int64, *, recorded: bool = True) -> Float32:
    """Log-probabilities ``(steps, rows, vocab)`` after each of `new` ``(steps, rows)``, a forward for each step.

    The layers are not called in a recorded forward.
    """
    found, before = [], (backend.forwards, backend.layer_calls)
    for tokens in new:
        tips, logits = backend.forward(pack, tokens, tips, np.arange(len(tokens)))
        found.append(log_softmax(logits))
    called = backend.layer_calls - before[1] >= (backend.forwards - before[0]) * backend.info.layers
    assert recorded != called
    return np.stack(found)


def test_a_decode_equals_the_plain_forward_before_and_after_it_is_recorded(one: Loaded) -> None:
    # given texts of different length in one pack, whose buffers have room for the first half of the new tokens
    texts = [one.ids(seed, n) for seed, n in ((1, 30), (2, 5), (3, 41))]
    pack, tips = started(one.backend, texts)
    new = one.ids(4, 3 * STEPS * 2).reshape(-1, 3)
    one.backend.resize(pack, one.backend.size(pack) + new[:STEPS].size)
    # when each continues token by token, and the buffers are moved in the middle
    got = decoded(one.backend, pack, tips, new)
    # then every row equals that of its own text
    for row, text in enumerate(texts):
        whole = np.concatenate([text, new[:, row]])
        one.check(got[:, row], whole, slice(len(text), None))


def test_a_recorded_decode_continues_after_slots_were_dropped(one: Loaded) -> None:
    # given a chain that decodes
    text, new = one.ids(5, 20), one.ids(6, STEPS)
    pack, tips = started(one.backend, [text])
    decoded(one.backend, pack, tips, new[:, None])
    # when its newest tokens are removed and others follow
    one.backend.truncate(pack, 24)
    other = one.ids(7, STEPS)
    got = decoded(one.backend, pack, np.array([23]), other[:, None])
    # then the removed tokens have no effect
    one.check(got[:, 0], np.concatenate([text, new[:4], other]), slice(24, None))


def test_nan_in_dropped_slots_reaches_no_row_through_a_recorded_forward() -> None:
    # given a decoding pack whose newest slots hold NaN
    one = Loaded("hf", "llama")
    texts = [one.ids(8, 10), one.ids(9, 10)]
    pack, tips = started(one.backend, texts)
    new = one.ids(10, 2 * STEPS).reshape(-1, 2)
    decoded(one.backend, pack, tips, new)
    size = one.backend.size(pack)
    with torch.inference_mode():
        for layer in pack.attention:
            layer.values[:, :, size - 1] = torch.nan
    # when the NaN is detected and the slots are removed
    assert not one.backend.sound(pack).all()
    one.backend.truncate(pack, size - 2)
    tips = np.array([size - 4, size - 3])
    got = decoded(one.backend, pack, tips, new, recorded=False)
    # then the rows continue unaffected
    for row, text in enumerate(texts):
        whole = np.concatenate([text, new[:-1, row], new[:, row]])
        one.check(got[:, row], whole, slice(len(text) + STEPS - 1, None))


def test_a_model_that_cannot_be_recorded_is_computed_without_recording(caplog: pytest.LogCaptureFixture) -> None:
    # given a model that synchronises with the device inside its forward, which cannot be recorded
    one = Loaded("hf", "llama")
    waits = torch.nn.modules.module.register_module_forward_hook(lambda _module, _args, out: waited(out))
    text, new = one.ids(11, 12), one.ids(12, STEPS)
    try:
        pack, tips = started(one.backend, [text])
        with caplog.at_level(logging.INFO):
            got = decoded(one.backend, pack, tips, new[:, None], recorded=False)
    finally:
        waits.remove()
    # then this is logged once, and the numbers are right
    assert sum("could not be recorded" in record.message for record in caplog.records) == 1
    one.check(got[:, 0], np.concatenate([text, new]), slice(len(text), None))


def waited(out: Any) -> None:
    if isinstance(out, torch.Tensor):
        out.sum().item()


def test_recorded_streams_give_the_same_tokens_alone_and_together() -> None:
    prompts = [random_ids(seed, 20).tolist() for seed in range(4)]

    async def answers() -> tuple[list[Any], list[Any]]:
        together = await asyncio.gather(*(model.sample(prompt, 40, [], temperature=0.0) for prompt in prompts))
        model.clear_cache()
        return together, [await model.sample(prompt, 40, [], temperature=0.0) for prompt in prompts]

    with load(tiny_path("llama"), backend="hf", dtype="float32") as model:
        together, alone = asyncio.run(answers())
    assert together == alone


@pytest.mark.parametrize("pasts", [(0, 0, 0), (40, 0, 130)])
def test_chains_of_different_length_attend_separately(half: HfBackend, pasts: tuple[int, ...]) -> None:
    # given texts, parts of which are already in the pack
    texts = [random_ids(seed, past + n) for seed, (past, n) in enumerate(zip(pasts, (64, 17, 90), strict=True))]
    pack, ends = half.open_pack(), []
    for text, past in zip(texts, pasts, strict=True):
        ends.append(int(append(half, pack, text[:past])[0][-1]) if past else ROOT)
    # when all continue in one call
    tokens = [text[past:] for text, past in zip(texts, pasts, strict=True)]
    starts = half.size(pack) + np.cumsum([0, *map(len, tokens[:-1])])
    parents = [chain(int(start), len(new), end) for start, new, end in zip(starts, tokens, ends, strict=True)]
    flat = np.concatenate(tokens)
    _, logits = half.forward(pack, flat, np.concatenate(parents), np.arange(len(flat)))
    # then each agrees with the plain forward within the precision of 16 bits
    at = 0
    for text, past in zip(texts, pasts, strict=True):
        got = log_softmax(logits[at : at + len(text) - past])
        at += len(text) - past
        gap = np.abs(got - expected("llama", text.tolist())[past:])
        assert np.median(gap) < 0.05
        assert gap.mean() < 0.1
