"""The interface of genlm-backend, and its guarantees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from runtime import load_model_by_name
from runtime.backends.fake import Behaviour
from runtime.errors import BackendUnavailableError, InvalidRequestError, UnknownBackendError
from tests.fakes import KINDS, Gate, assert_right, engine_of, fake_model, reference, some_ids
from tests.tiny_models import tiny_path


def test_loading_by_name_takes_genlms_options() -> None:
    options = {"batch_size": 3, "prefill_step_size": 17, "timeout": 0.02, "kv_cache_bytes": 1 << 22}
    with load_model_by_name("anything", backend="mock", llm_opts=options) as model:
        assert model.info.options["max_batch_rows"] == 3
        assert model.info.options["prefill_chunk_tokens"] == 17
        assert model.info.options["kv_cache_bytes"] == 1 << 22
    with load_model_by_name(str(tiny_path("llama"))) as model:
        assert model.info.backend in ("hf", "mlx")


@pytest.mark.parametrize(("size", "kept"), [(0, 0), (1, 1), (4, 4), (1000, 10)])
def test_cache_size_counts_cached_vectors(size: int, kept: int) -> None:
    # given genlm's size of the output cache
    prompts = [some_ids(seed, 6) for seed in range(10)]
    with load_model_by_name("anything", backend="fake", llm_opts={"cache_size": size}) as model:
        model.batch_next_token_logprobs_sync(prompts)
        model.set_kv_budget(1 << 24)  # it does not change the number of vectors
        # when all are queried again, the latest first, then so many answers are cached, and all of the KV
        before = model.metrics()
        for prompt in reversed(prompts[10 - kept :] if kept else []):
            assert_right(model.next_token_logprobs_sync(prompt), prompt)
        assert model.metrics().forward_calls == before.forward_calls
        assert model.metrics().full_vector_hits - before.full_vector_hits == kept
        for prompt in prompts:
            assert model.prefix_match(prompt).tokens == 6
            assert_right(model.next_token_logprobs_sync(prompt), prompt)


def test_invalid_options_are_refused() -> None:
    for options, says in (
        ({"cache_size": -1}, "cache_size"),
        ({"cache_size": True}, "cache_size"),
        ({"cache_size": 1.5}, "cache_size"),
        ({"batch_size": 2, "max_batch_rows": 3}, "batch_size is genlm's name for max_batch_rows"),
        ({"batch_size": 0}, "max_batch_rows"),
        ({"max_rows": 5}, "max_batch_rows"),
    ):
        with pytest.raises(InvalidRequestError, match=says):
            load_model_by_name("anything", backend="fake", llm_opts=options)


def test_the_libraries_dictionaries_are_translated_one_by_one() -> None:
    options = {
        "hf_opts": {
            "torch_dtype": "float32",
            "device_map": {"": "cpu"},
            "attn_implementation": "eager",
            "low_cpu_mem_usage": True,
        },
        "engine_opts": {"max_model_len": 77, "max_num_seqs": 3, "enable_prefix_caching": True, "dtype": "float"},
        "bitsandbytes_opts": {"load_in_4bit": False},
    }
    with load_model_by_name(str(tiny_path("llama")), backend="hf", llm_opts=options) as model:
        found = model.info.options
        assert (found["dtype"], found["attention"], found["max_batch_rows"]) == ("float32", "eager", 3)
        assert model.info.context_length == 77
    with load_model_by_name(str(tiny_path("llama")), "hf", {"bitsandbytes_opts": {"load_in_8bit": True}}) as model:
        assert model.info.options["weights"] == "int8"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"hf_opts": {"max_memory": {0: "1GB"}}},
            "hf_opts: max_memory is not taken over: offload='disk' with offload_memory_bytes",
        ),
        ({"hf_opts": {"trust_remote_code": True}}, "trust_remote_code=True: no code of a model is run here"),
        ({"hf_opts": {"device_map": {"layers.0": 0, "layers.1": 1}}}, "device='cuda:0'"),
        ({"hf_opts": {"torch_dtype": "float23"}}, "dtype='float23': did you mean 'float32'?"),
        ({"hf_opts": {"quantization_config": object()}}, "weights='int8' or weights='int4'"),
        ({"hf_opts": {"nothing": 1}}, "hf_opts has 'nothing', which has no counterpart here"),
        ({"hf_opts": 5}, "hf_opts is a mapping of names and values, not 5"),
        ({"bitsandbytes_opts": {"bnb_4bit_quant_type": "nf4"}}, "weights='int4' has one form"),
        ({"engine_opts": {"gpu_memory_utilization": 0.9}}, "kv_cache_bytes=... is the memory"),
        ({"engine_opts": {"tensor_parallel_size": 2}}, "tensor_parallel_size=2: a model is on one device"),
        ({"engine_opts": {"seed": 1}}, "GenerationOptions(seed=...)"),
        ({"engine_opts": {"max_num_seqs": 0}}, "max_batch_rows must be a whole number"),
        ({"batch_size": 2, "engine_opts": {"max_num_seqs": 3}}, "engine_opts is genlm's name for max_batch_rows: give one"),
    ],
)
def test_options_without_a_counterpart_are_refused_with_the_alternative(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load_model_by_name("anything", backend="fake", llm_opts=options)
    assert says in str(caught.value)


def test_unknown_and_unavailable_backends_are_refused() -> None:
    with pytest.raises(UnknownBackendError, match="'mock'"):
        load_model_by_name("anything", backend="moc")
    with pytest.raises(BackendUnavailableError, match="vllm"):
        load_model_by_name("anything", backend="vllm")
    with pytest.raises(InvalidRequestError, match="'dtype'"):
        load_model_by_name("anything", backend="mock", llm_opts={"dtyp": "float32"})


def test_async_batch_and_sync_calls_give_the_same_answer() -> None:
    prompts = [some_ids(seed, 5 + seed) for seed in range(6)]
    with fake_model() as model:

        async def main() -> Any:
            singles = await asyncio.gather(*(model.next_token_logprobs(p) for p in prompts))
            return np.stack(singles), await model.batch_next_token_logprobs(prompts)

        singles, batch = asyncio.run(main())
        assert np.array_equal(singles, batch)
        assert np.array_equal(batch, model.batch_next_token_logprobs_sync(prompts))
        assert np.array_equal(batch[2], model.next_token_logprobs_sync(prompts[2]))
        np.testing.assert_allclose(batch[3], model.next_token_logprobs_uncached(prompts[3]), atol=1e-5)


def test_a_reset_cancels_every_waiting_query_and_no_stream() -> None:
    # given queries in the model, in the queue and joined, beside a stream
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=4) as model:

        async def main() -> None:
            gate.shut()
            first = [asyncio.create_task(model.next_token_logprobs(some_ids(s, 20))) for s in range(3)]
            stream = asyncio.create_task(model.sample([7, 8], 10, [], temperature=0.0))
            await asyncio.to_thread(gate.reached.wait)
            late = [asyncio.create_task(model.next_token_logprobs(some_ids(s, 20))) for s in (0, 9)]
            await asyncio.sleep(0.01)
            reset = asyncio.create_task(model.reset_async_queries_async())
            await asyncio.sleep(0.01)
            gate.open()
            await reset
            for task in (*first, *late):
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert len(await stream) == 10
            # and the same queries are answered afterwards
            for seed in (0, 9):
                assert_right(await model.next_token_logprobs(some_ids(seed, 20)), some_ids(seed, 20))

        asyncio.run(main())
        model.reset_async_queries()  # without a waiting query nothing happens


def test_sampling_and_queries_that_run_together_are_the_same_as_alone() -> None:
    prompts = [some_ids(seed, 8) for seed in range(5)]
    with fake_model() as model:
        alone = [asyncio.run(model.sample(p, 12, [0], seed=3)) for p in prompts]
        model.clear_cache()

        async def main() -> tuple[Any, Any]:
            return await asyncio.gather(
                model.batch_sample(prompts, 12, [0], seed=3), model.batch_next_token_logprobs([p[:6] for p in prompts])
            )

        tails, rows = asyncio.run(main())
        assert tails == alone
        for row, prompt in zip(rows, prompts, strict=True):
            assert_right(row, prompt[:6])


@pytest.mark.slow
def test_sample_leaves_the_eos_out_and_honours_the_temperature() -> None:
    prompt = some_ids(1, 8)
    with fake_model() as model:
        greedy = asyncio.run(model.sample(prompt, 10, [], temperature=0.0))
        assert greedy[0] == int(reference(prompt).argmax())
        # an eos in the middle ends it before
        at = next(i for i in range(1, 10) if greedy[i] not in greedy[:i])
        assert asyncio.run(model.sample(prompt, 10, [greedy[at]], temperature=0.0)) == greedy[:at]
        # the model's own eos does not end these
        for seed in range(30):
            ids = asyncio.run(model.sample(prompt, 30, [], seed=seed))
            assert len(ids) == 30
        # without a seed two calls differ, with one they do not
        assert asyncio.run(model.sample(prompt, 20, [])) != asyncio.run(model.sample(prompt, 20, []))
        assert asyncio.run(model.sample(prompt, 20, [], seed=1)) == asyncio.run(model.sample(prompt, 20, [], seed=1))


def test_empty_batches_are_refused() -> None:
    with fake_model() as model:
        with pytest.raises(InvalidRequestError, match="empty batch"):
            model.batch_next_token_logprobs_sync([])
        for work in (lambda: model.batch_next_token_logprobs([]), lambda: model.batch_sample([], 1, [])):
            with pytest.raises(InvalidRequestError, match="empty batch"):
                asyncio.run(work())


def test_sample_and_batch_sample_take_the_argument_names_of_genlm() -> None:
    prompts = [some_ids(seed, 6) for seed in range(3)]
    with fake_model() as model:
        common: dict[str, Any] = {"max_tokens": 4, "eos_token_ids": [], "temperature": 0.5, "seed": 80808}

        async def main() -> None:
            together = await model.batch_sample(prompt_token_ids_list=prompts, **common)
            assert together == [await model.sample(prompt_token_ids=p, **common) for p in prompts]
            # an eos at every id, and max_tokens of 0, give no tokens
            common["eos_token_ids"] = range(259)
            assert await model.batch_sample(prompts, **common) == [[], [], []]
            assert await model.batch_sample(prompts, 0, []) == [[], [], []]
            with pytest.raises(InvalidRequestError):
                await model.sample([], 0, [])

        asyncio.run(main())


def blocking(call: Callable[[Sequence[int]], Coroutine[Any, Any, None]]) -> Callable[[Sequence[int]], None]:
    return lambda ids: asyncio.run(call(ids))


@pytest.mark.parametrize("how", ["cleared", "evicted"])
@pytest.mark.parametrize("kind", KINDS)
def test_cache_kv_computes_dropped_kv_even_if_the_vector_is_cached(kind: str, how: str) -> None:
    # given a text whose vector is cached, but whose KV was dropped
    ids = some_ids(1, 40)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        for tail, keep in enumerate([model.cache_kv, blocking(model.cache_kv_async)]):
            model.next_token_logprobs_sync(ids)
            if how == "cleared":
                model.clear_kv_cache()
            else:
                engine_of(model).call(lambda: engine_of(model).scheduler.cache.trie.evict(1 << 40)).result()
            assert model.prefix_match(ids).tokens == 0
            # when it is to be cached, then it is, and a longer text computes only its own tokens
            keep(ids)
            assert model.prefix_match(ids).tokens == 40
            before = model.metrics().tokens_computed
            assert_right(model.next_token_logprobs_sync([*ids, tail]), [*ids, tail], kind)
            assert model.metrics().tokens_computed - before == 1
            keep(ids)  # cached KV is not computed again
            assert model.metrics().tokens_computed - before == 1


def test_clear_cache_drops_the_kv() -> None:
    with fake_model() as model:
        model.cache_kv([1, 2, 3])
        assert model.prefix_match([1, 2, 3, 4]).tokens == 3
        assert model.prefix_match([1, 2, 3, 4]).tier == "warm"
        model.clear_cache()
        assert (model.prefix_match([1, 2, 3]).tokens, model.prefix_match([1, 2, 3]).tier) == (0, "cold")


@pytest.mark.parametrize("name", ["llama", "llama_wide"])
def test_vocabularies_are_as_long_as_the_logits_are_wide(name: str) -> None:
    with load_model_by_name(str(tiny_path(name)), backend="hf") as model:
        assert (
            len(model.byte_vocab) == len(model.str_vocab) == model.info.vocab_size == len(model.next_token_logprobs_sync([1]))
        )
        text = "Lists may be nested: naïve 🙂\n\n"
        ids = model.tokenize(text)
        assert b"".join(model.byte_vocab[i] for i in ids) == text.encode()
        assert b"".join(model.decode_token(i) for i in ids).decode() == model.detokenize(ids) == text
        assert len({*model.byte_vocab[3:1000]}) == 997
