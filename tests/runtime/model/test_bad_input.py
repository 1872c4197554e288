"""Input that is refused before anything is computed, and the messages of the refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.errors import (
    BackendUnavailableError,
    ContextOverflowError,
    InvalidRequestError,
    ModelLoadError,
    ModelMissingError,
    UnknownBackendError,
    UnsupportedFeatureError,
)
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.fakes import assert_right, fake_model, some_ids
from tests.tiny_models import tiny_path

BAD_IDS: list[tuple[Any, str]] = [
    ([], "no tokens"),
    ([[]], "no tokens"),
    ([1, -1], r"token id -1 at position 1 is outside the vocabulary of 259"),
    ([1, 2, 259], r"token id 259 at position 2 is outside the vocabulary of 259"),
    ([1 << 40], r"token id 1099511627776 at position 0"),
    ([1 << 80], "whole numbers"),
    ([1.0, 2.0], "whole numbers, not float64"),
    ([1, None], "whole numbers"),
    (["1"], "whole numbers"),
    ([True, False], "whole numbers, not bool"),
    ([1, True], "whole numbers, not bool"),
    ([[1, 2], [3, 4]], r"one flat sequence"),
    ([[1, 2], [3]], r"one flat sequence"),
    ("ab", "flat|whole"),
    (5, "flat"),
    (np.zeros((2, 2), np.int64), "flat"),
    (np.array([np.nan]), "whole numbers"),
]


async def everything(model: LanguageModel, ids: Any) -> list[Any]:
    works = (
        model.next_token_logprobs(ids),
        model.batch_next_token_logprobs([[1], ids]),
        model.score(ids),
        model.sample(ids, 3, []),
        model.next_token_logprobs_uncached_async(ids),
        anext(model.generate(ids)),
    )
    return list(await asyncio.gather(*works, return_exceptions=True))


@pytest.mark.parametrize(("ids", "says"), BAD_IDS, ids=str)
def test_bad_token_ids_are_refused_before_compute(ids: Any, says: str) -> None:
    with fake_model() as model:
        for error in asyncio.run(everything(model, ids)):
            with pytest.raises(InvalidRequestError, match=says):
                raise error
        for call in (model.next_token_logprobs_sync, model.cache_kv, model.prefix_match, model.next_token_logprobs_uncached):
            with pytest.raises(InvalidRequestError, match=says):
                call(ids)
        assert model.metrics().tokens_computed == 0


@pytest.mark.parametrize("ids", [(1, 2), np.array([1, 2], np.uint8), np.array([1, 2], np.int64), range(1, 3)], ids=repr)
def test_token_ids_of_any_sequence_type_are_accepted(ids: Any) -> None:
    with fake_model() as model:
        assert_right(model.next_token_logprobs_sync(ids), [1, 2])


def test_a_caller_may_change_its_array_afterwards() -> None:
    ids: Any = np.array([1, 2, 3], np.int32)  # arrays are taken where sequences are
    with fake_model() as model:

        async def main() -> Any:
            task = asyncio.create_task(model.next_token_logprobs(ids))
            await asyncio.sleep(0)
            ids[:] = 9
            return await task

        assert_right(asyncio.run(main()), [1, 2, 3])


def test_a_text_longer_than_the_context_is_refused_with_numbers_before_compute() -> None:
    with fake_model(context_length=50) as model:
        for error in asyncio.run(everything(model, some_ids(1, 51))):
            assert isinstance(error, ContextOverflowError)
            assert (error.resident, error.additional, error.limit) == (0, 51, 50)
            assert "51 tokens do not fit into the context of 50 (1 too many)" in str(error)
            assert "context_length" in str(error)
        assert model.metrics().tokens_computed == 0
        assert model.metrics().forward_calls == 0
        assert_right(model.next_token_logprobs_sync(some_ids(1, 50)), some_ids(1, 50))


@pytest.mark.parametrize(
    "options",
    [
        GenerationOptions(sampling=SamplingOptions(temperature=-1.0)),
        GenerationOptions(max_tokens=0),
        GenerationOptions(branch=-1),
    ],
)
def test_bad_options_do_not_affect_other_requests(options: GenerationOptions) -> None:
    with fake_model() as model:

        async def main() -> None:
            other = asyncio.create_task(model.sample([1], 5, []))
            with pytest.raises(InvalidRequestError):
                await anext(model.generate([1], options))
            assert len(await other) == 5

        asyncio.run(main())
        with pytest.raises(InvalidRequestError):
            next(iter(model.generate_sync([1], options)))


NO_IDS: tuple[Any, ...] = (5, None, "eos", [1.0], [[1]])


def test_bad_sampling_arguments_of_genlms_call_are_named() -> None:
    bad: list[dict[str, Any]] = [
        {"max_tokens": -1},
        {"temperature": -1.0},
        {"seed": -1},
        *({"eos_token_ids": e} for e in NO_IDS),
    ]
    with fake_model() as model:
        for arguments in bad:
            with pytest.raises(InvalidRequestError, match=next(iter(arguments))):
                asyncio.run(model.sample([1], **{"max_tokens": 2, "eos_token_ids": [], **arguments}))


def test_unknown_options_and_backends_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"'kv_cache_bytes'"):
        load("anything", backend="fake", kv_cache_byte=5)
    with pytest.raises(InvalidRequestError, match="trust_remote_code"):
        load("anything", backend="fake", trust_remote_code=True)
    with pytest.raises(UnknownBackendError, match="'fake'"):
        load("anything", backend="fak")
    with pytest.raises(BackendUnavailableError, match="vllm"):
        load("anything", backend="vllm")
    with pytest.raises(InvalidRequestError, match="positions"):
        load("anything", backend="fake", context_length=10**9)


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_missing_model_is_named_in_the_error(backend: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "none", tmp_path / "empty", "nobody/nothing"):
        with pytest.raises(ModelLoadError) as caught:
            load(source, backend=backend)
        assert Path(str(source)).name in str(caught.value)


@pytest.mark.parametrize("backend", ["hf", "mlx", "auto", "fake"])
@pytest.mark.parametrize("source", [None, 5, b"x", range(2), {}, [1, 2], (), (1,), (1, 2, 3)], ids=repr)
def test_a_source_that_is_no_model_is_refused(source: Any, backend: str) -> None:
    with pytest.raises(InvalidRequestError, match="a model is a folder, a GGUF file, a name on the shelf, or a ready"):
        load(source, backend)


def test_a_name_that_no_file_system_holds_is_missing() -> None:
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(ModelMissingError):
            load(name, "hf")


def test_a_ready_model_of_the_other_library_is_refused_with_the_backend_that_takes_it() -> None:
    import mlx_lm
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = str(tiny_path("llama"))
    model, tokenizer, *_ = mlx_lm.load(path)
    torchs = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    with pytest.raises(InvalidRequestError, match=r"'hf' takes a transformers model .* a Model; load it with backend='mlx'"):
        load((model, tokenizer), "hf")
    with pytest.raises(InvalidRequestError, match=r"'mlx' takes a model of mlx_lm .*; load it with backend='hf'"):
        load(torchs, "mlx")
    for swapped in (torchs[::-1], (None, torchs[1]), (object(), object())):
        with pytest.raises(InvalidRequestError, match="takes a transformers model and its tokenizer, not a"):
            load(swapped, "hf")
    # and a ready model is used as it is
    unlike: list[tuple[tuple[Any, Any], dict[str, Any]]] = [
        (torchs, {"dtype": "bfloat16"}),
        (torchs, {"attention": "eager"}),
        ((model, tokenizer), {"dtype": "float16"}),
    ]
    for pair, options in unlike:
        with pytest.raises(UnsupportedFeatureError, match="takes a model folder; a model that is in memory"):
            load(pair, **options)
    load(torchs, dtype="float32", device="cpu", attention="sdpa").close()
    # "auto" takes the one that can run it
    for pair, backend in (((model, tokenizer), "mlx"), (torchs, "hf")):
        with load(pair) as loaded:
            assert loaded.info.backend == backend


def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    with fake_model() as model:
        for bad in (-1, 259):
            with pytest.raises(InvalidRequestError, match="259"):
                model.decode_token(bad)
            with pytest.raises(InvalidRequestError):
                model.detokenize([65, bad])


@pytest.mark.parametrize("bad", [1.0, "1", None, True, [1], b"a"], ids=repr)
def test_values_that_are_no_token_ids_are_refused(bad: Any) -> None:
    with fake_model() as model:
        for act in (model.decode_token, model.is_eos, lambda token: model.detokenize([65, token])):
            with pytest.raises(InvalidRequestError, match="a token id is a whole number"):
                act(bad)
        with pytest.raises(InvalidRequestError, match="a sequence of whole numbers"):
            model.detokenize(5)  # type: ignore[arg-type]  # the mistake under test
        assert model.detokenize(np.array([104, 105], np.int32)) == "hi"  # type: ignore[arg-type]  # taken too
        assert model.decode_token(np.int64(65)) == b"A"  # type: ignore[arg-type]  # and so is one of its numbers
