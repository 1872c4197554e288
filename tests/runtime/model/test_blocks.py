"""KV that outlives the process on real models: restored equals fresh, on both backends and all kinds of layers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime import load
from runtime.adapters.uses import Adapters
from runtime.options.load import BlockOptions
from tests.block_stores import SHELVES, MemoryBlocks, memory_options
from tests.fakes import engine_of
from tests.runtime.adapters.makers import INVOCATION, adapters_of, save_adapter
from tests.runtime.adapters.test_activated import plain
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

TOLERANCE = 1e-4  # nats, as docs/tolerances.md prints it for tiny models
NAMES = ("llama", "gemma3", "lfm2", "mamba", "falcon_h1")
RECURRENT = ("lfm2", "mamba", "falcon_h1")


def ids(seed: int, n: int) -> list[int]:
    return [int(i) for i in random_ids(seed, n)]


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Iterator[BlockOptions]:
    name = request.node.nodeid
    SHELVES[name] = MemoryBlocks()
    yield memory_options(name)
    del SHELVES[name]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("name", NAMES)
def test_restored_equals_fresh(name: str, backend: str, options: BlockOptions) -> None:
    stem, new = ids(1, 150), ids(2, 6)
    with load(tiny_path(name), backend=backend, blocks=options) as model:
        said = asyncio.run(model.sample(stem, 12, [], temperature=0.0))
        path = [*stem, *said]
        held = model.prefix_match(path).tokens
        assert model.save_blocks(path).tokens == held >= len(path) - 1
        fresh = [model.next_token_logprobs_uncached([*path, *new[:n]]) for n in (1, len(new))]
    with load(tiny_path(name), backend=backend, blocks=options) as model:
        assert model.prefix_match(path).tokens == held
        before = model.metrics().tokens_computed
        got = model.next_token_logprobs_sync([*path, new[0]])
        np.testing.assert_allclose(got, fresh[0], atol=TOLERANCE, rtol=0)
        assert model.metrics().tokens_restored == held
        assert model.metrics().tokens_computed - before <= 1 + 1
        got = model.next_token_logprobs_sync([*path, *new])
        np.testing.assert_allclose(got, fresh[1], atol=TOLERANCE, rtol=0)
        assert model.metrics().tokens_computed - before <= 1 + len(new)
        # and a branch off the middle
        if name not in RECURRENT:
            model.clear_cache()
            branch = [*path[:100], *new]
            np.testing.assert_allclose(
                model.next_token_logprobs_sync(branch), model.next_token_logprobs_uncached(branch), atol=TOLERANCE, rtol=0
            )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("name", ["llama", "mistral", "falcon_h1"])
def test_texts_that_diverge_inside_a_block_are_restored_exactly(name: str, backend: str, options: BlockOptions) -> None:
    # given two texts that diverge within a block and grow in turns: the slots of either lie between those of the other
    stem = ids(1, 150)
    paths, store = [stem, [*stem[:100], *ids(2, 40)]], SHELVES[options.path]
    with load(tiny_path(name), backend=backend, blocks=options) as model:
        for end in range(110, 151, 10):
            for path in paths:
                model.cache_kv(path[:end])
        for path in paths:
            assert model.save_blocks(path).tokens == len(path)
        running = [model.next_token_logprobs_sync([*path, 7]) for path in paths]
    saved = dict(store.blocks)
    # then another model continues them with the same numbers
    with load(tiny_path(name), backend=backend, blocks=options) as model:
        for path, expected in zip(paths, running, strict=True):
            np.testing.assert_allclose(model.next_token_logprobs_sync([*path, 7]), expected, atol=TOLERANCE, rtol=0)
        assert model.metrics().tokens_computed == 2
        # and the blocks that it would save are the same, bit for bit
        store.blocks.clear()
        for path in paths:
            assert model.save_blocks(path).tokens == len(path)
        assert saved | store.blocks == saved


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("kv_dtype", ["q8", "q4", "bf16"])
def test_quantised_kv_is_saved_as_it_is_stored(kv_dtype: str, backend: str, options: BlockOptions) -> None:
    stem = ids(1, 150)
    with load(tiny_path("llama"), backend=backend, blocks=options, kv_dtype=kv_dtype) as model:
        model.cache_kv(stem)
        engine_of(model).call(engine_of(model).scheduler.cache.workspaces.drop_idle).result()
        from_memory = model.next_token_logprobs_sync([*stem, 5])
        model.save_blocks(stem)
    with load(tiny_path("llama"), backend=backend, blocks=options, kv_dtype=kv_dtype) as model:
        np.testing.assert_allclose(model.next_token_logprobs_sync([*stem, 5]), from_memory, atol=TOLERANCE, rtol=0)
        assert model.metrics().tokens_restored == 150
    # then a model with another kv_dtype does not use it
    with load(tiny_path("llama"), backend=backend, blocks=options) as model:
        assert model.prefix_match(stem).tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_adapters_have_blocks_of_their_own(backend: str, options: BlockOptions, tmp_path: Path) -> None:
    one, two = adapters_of("llama", tmp_path)
    act = save_adapter(tmp_path / "act", "llama", seed=3, alora_invocation_tokens=INVOCATION)
    prefix = plain(1, 100)
    invoked = [*prefix, *INVOCATION, *plain(2, 40)]
    asked: list[tuple[list[int], Adapters]] = [
        (prefix, ()),
        (prefix, [one.name]),
        (prefix, [(one.name, 0.5)]),
        (prefix, [two.name]),
        (invoked, ["act"]),
    ]
    with load(tiny_path("llama"), backend=backend, blocks=options) as model:
        for folder in (one, two, act):
            model.load_adapter(model.add_adapter(folder))
        for path, adapters in asked[1:]:
            model.cache_kv(path, adapters=adapters)
            assert model.save_blocks(path, adapters=adapters).tokens == len(path)
    with load(tiny_path("llama"), backend=backend, blocks=options) as model:
        for folder in (act, two, one):
            model.load_adapter(model.add_adapter(folder))
        # the base's blocks are those of the activated path before its invocation
        assert model.prefix_match(prefix, adapters=()).tokens == len(prefix)
        for path, adapters in asked:
            before = model.metrics()
            got = model.next_token_logprobs_sync([*path, 7], adapters=adapters)
            expected = model.next_token_logprobs_uncached([*path, 7], adapters=adapters)
            np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)
            assert model.metrics().tokens_computed - before.tokens_computed == 1
        assert model.prefix_match(prefix, adapters=[(two.name, 0.5)]).tokens == 0


@pytest.mark.slow
def test_a_model_of_other_weights_or_another_backend_restores_nothing(options: BlockOptions) -> None:
    stem = ids(1, 100)
    with load(tiny_path("llama"), backend="hf", blocks=options) as model:
        model.cache_kv(stem)
        model.save_blocks(stem)
    for other, backend in (("mistral", "hf"), ("llama", "mlx")):
        with load(tiny_path(other), backend=backend, blocks=options) as model:
            assert model.prefix_match(stem).tokens == 0
            model.next_token_logprobs_sync(stem)
            assert model.metrics().tokens_restored == 0
