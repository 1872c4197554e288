"""`embed` over the pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from runtime import ContextOverflowError, InvalidRequestError, LanguageModel, PromptProgress, load, spawn
from tests.runtime.process.conftest import eventually

TEXTS = ["one", "two three", "one", "é" * 40]


@pytest.fixture(scope="module")
def client() -> Iterator[LanguageModel]:
    client = asyncio.run(spawn("x", "fake", prefill_chunk_tokens=64))
    yield client
    client.close()


@pytest.mark.slow
def test_vectors_and_progress_over_the_pipe_equal_those_in_process(client: LanguageModel) -> None:
    told: list[PromptProgress] = []
    got = asyncio.run(client.embed(TEXTS, "mean", on_progress=told.append))
    with load("x", "fake", prefill_chunk_tokens=64) as model:
        np.testing.assert_array_equal(got, model.embed_sync(TEXTS, "mean"))
    assert told[-1] == PromptProgress(95, 95, 3, 98)  # six of them padding
    np.testing.assert_array_equal(client.embed_sync(TEXTS, "mean"), got)
    assert client.metrics().texts_embedded == 8
    assert client.cache_report().working_bytes == client.cache_report().bytes == 0


def test_invalid_texts_are_refused_over_the_pipe_before_compute(client: LanguageModel) -> None:
    before = client.metrics().tokens_computed
    for texts, pooling, words in (
        ([], "last", "no texts"),
        (["a", ""], "last", r"texts\[1\] is empty"),
        (["a"], "men", "'mean'"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            client.embed_sync(texts, pooling)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ContextOverflowError, match=r"texts\[1\]"):
        client.embed_sync(["a", "x" * 200_000])
    assert client.metrics().tokens_computed == before


def test_more_vectors_than_fit_the_pipe_are_refused(client: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.transport.pipe.MAX_PAYLOAD", 640)  # ten vectors
    with pytest.raises(InvalidRequestError, match="ask for 6 texts at a time"):
        client.embed_sync(["a"] * 10)


def test_a_cancelled_embed_call_is_cancelled_in_the_engine(client: LanguageModel) -> None:
    async def cancelled() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(client.embed(["y" * 100_000], on_progress=lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.embed(["after"])).shape == (1, 16)

        async def freed() -> bool:
            await client.prefix_match_async([1])  # its answer carries the cache report
            return client.cache_report().working_bytes == 0

        await eventually(freed)

    asyncio.run(cancelled())
