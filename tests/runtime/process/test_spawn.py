"""`spawn` with the loader that the app uses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import (
    BackendUnavailableError,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    ModelLoadError,
    RuntimeFault,
    UnknownBackendError,
    load,
    register_backend,
    spawn,
    unregister_backend,
)
from runtime.backends.mock import load as load_mock
from runtime.loading.model_folder import ModelFolder

IDS = [104, 101, 108, 108, 111]
OPTIONS = GenerationOptions(max_tokens=12, seed=7)


async def _everything(model: LanguageModel) -> list[object]:
    """Answers and properties of a model, for comparison."""
    return [
        model.info,
        model.byte_vocab,
        model.str_vocab,
        model.eos_token_ids,
        model.chat_template,
        (await model.next_token_logprobs(IDS)).tolist(),
        (await model.batch_next_token_logprobs([IDS, IDS[:2]])).tolist(),
        (await model.next_token_logprobs_uncached_async(IDS)).tolist(),
        await model.score(IDS, top_k=3, start=1),
        [record async for record in model.generate(IDS, OPTIONS)],
        await model.sample(IDS, 5, model.eos_token_ids, 0.7, 3),
        await model.batch_sample([IDS, IDS[:3]], 5, model.eos_token_ids, 0.7, 3),
        await model.complete("hello", OPTIONS),
        await model.complete([{"role": "user", "content": "hi \ud800"}], OPTIONS),
        await model.tokenize_async("a\ud800\0é"),
        await model.detokenize_async(IDS),
        await model.render_chat_async([{"role": "user", "content": "hi"}]),
        await model.prefix_match_async(IDS),
    ]


@pytest.mark.slow
def test_a_spawned_model_answers_like_one_in_this_process() -> None:
    async def scenario() -> None:
        with load("anything", "mock") as local:
            async with await spawn("anything", "mock") as spawned:
                for here, there in zip(await _everything(local), await _everything(spawned), strict=True):
                    assert _plain(here) == _plain(there)
                np.testing.assert_array_equal(spawned.next_token_logprobs_sync(IDS), local.next_token_logprobs_sync(IDS))

    asyncio.run(scenario())


def _plain(value: Any) -> str:
    """Text for comparison: NaN equals NaN, and lists equal tuples, which the pipe does not distinguish."""
    return repr(value).replace("(", "[").replace(")", "]").replace(",]", "]")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ids", [[], [10**9], [-1], [1] * 40_000], ids=["empty", "too high", "negative", "too long"])
def test_an_invalid_request_raises_the_same_error_in_process_and_over_the_pipe(ids: list[int]) -> None:
    async def scenario() -> None:
        with load("anything", "mock") as local:
            async with await spawn("anything", "mock") as spawned:
                errors = await asyncio.gather(
                    local.next_token_logprobs(ids), spawned.next_token_logprobs(ids), return_exceptions=True
                )
                assert isinstance(errors[0], InvalidRequestError)
                assert repr(errors[0]) == repr(errors[1])

    asyncio.run(scenario())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("source", "backend", "options", "error", "reason"),
    [
        ("x", "mocc", {}, UnknownBackendError, "did you mean 'mock'"),
        ("x", "vllm", {}, BackendUnavailableError, "connected to by its address"),
        ("x", "mock", {"threds": 2}, InvalidRequestError, "did you mean 'threads'"),
        ("x", "mock", {"cache": object()}, InvalidRequestError, "cache is True or False, not <object"),
        ("nobody/nothing", "mlx", {}, ModelLoadError, "elsewise models get smollm2"),
        (("model", "tokenizer"), "hf", {}, InvalidRequestError, "tuple cannot be sent to an engine process"),
    ],
)
def test_a_failed_load_raises_a_typed_error(
    source: Any,
    backend: str,
    options: dict[str, Any],
    error: type[RuntimeFault],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path))
    with pytest.raises(error, match=reason):
        asyncio.run(spawn(source, backend, **options))
    assert capfd.readouterr().err == ""  # the error goes to the caller, without a traceback in the log


@pytest.mark.slow
def test_a_registered_backend_is_known_in_the_engine_process() -> None:
    register_backend("ours", "runtime.backends.mock:load")
    try:
        with asyncio.run(spawn("anything", "ours")) as client:
            assert client.tokenize("a") == [97]
    finally:
        unregister_backend("ours")


def test_a_backend_registered_as_a_local_function_is_refused_before_a_process_starts() -> None:
    def local(source: ModelFolder | tuple[Any, Any], options: Any) -> Any:
        return load_mock(source, options)

    register_backend("ours", local)
    try:
        with pytest.raises(InvalidRequestError, match="register it as 'package"):
            asyncio.run(spawn("anything", "ours"))
    finally:
        unregister_backend("ours")
