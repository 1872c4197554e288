from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from runtime import (
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    SamplingOptions,
    compare_models,
    connect,
    connect_async,
    load_model_by_name,
)
from tests.runtime.remote.servers import Server, serving

GREEDY = GenerationOptions(max_tokens=6, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)


async def talk(model: LanguageModel) -> tuple[list[int], list[int], list[int]]:
    """The tokens of a session, of its fork, and of the session resumed from its snapshot."""
    async with model.open_session() as session:
        await session.ensure_prefix("Once upon a time")
        async for _ in session.decode(GREEDY):
            pass
        fork = session.fork()
        async for _ in fork.decode(GREEDY):
            pass
        snapshot = session.snapshot()
        resumed = model.resume(snapshot)
        return list(session.ids), list(fork.ids), list(resumed.ids)


@pytest.mark.slow
def test_a_session_and_its_fork_equal_those_of_a_local_model(remote: LanguageModel, model: LanguageModel) -> None:
    assert asyncio.run(talk(remote)) == asyncio.run(talk(model))


def test_a_snapshot_can_be_resumed_over_a_new_connection(server: Server) -> None:
    async def ids(*words: str) -> list[list[int]]:
        found = []
        snapshot = None
        for word in words:
            async with await connect_async(server.base_url, tokenizer="server") as remote:
                await remote.tokenize_async(word)  # another connection has seen other tokens
                async with remote.resume(snapshot) if snapshot else remote.open_session() as session:
                    await session.ensure_prefix("Once upon a time")
                    found.append(list(session.ids))
                    snapshot = session.snapshot()
        return found

    first, second = asyncio.run(ids("one", "another"))
    assert first == second


def test_a_remote_model_can_be_compared_with_a_local_one(remote: LanguageModel, model: LanguageModel) -> None:
    found = asyncio.run(compare_models(model, remote, "A text for both."))
    np.testing.assert_allclose(found.left.logprob[1:], found.right.logprob[1:], atol=1e-6)


def test_load_model_by_name_connects_with_the_options_of_genlm(server: Server, folder: Path, model: LanguageModel) -> None:
    with load_model_by_name("tiny", "vllm", {"base_url": server.base_url, "tokenizer": folder, "timeout": 1}) as remote:
        ids = remote.tokenize("Hello")
        np.testing.assert_allclose(remote.next_token_logprobs_sync(ids), model.next_token_logprobs_sync(ids), atol=1e-6)
        drawn = asyncio.run(remote.sample(ids, 5, [257], temperature=0.0))
        assert drawn == asyncio.run(model.sample(ids, 5, [257], temperature=0.0))
    with pytest.raises(InvalidRequestError, match="unknown option 'dtype'"):
        load_model_by_name("tiny", "vllm", {"base_url": server.base_url, "dtype": "half"})


def test_the_tokenizer_digest_of_an_elsewise_server_selects_the_tokenizer(model: LanguageModel, folder: Path) -> None:
    entry = {"id": "tiny", "owned_by": "elsewise", "root": str(folder), "max_model_len": 2048, "eos_token_ids": [257, 258]}
    with serving(model, models=[{**entry, "tokenizer_digest": model.tokenizer_digest, "vocab_size": 259}]) as server:
        with connect(server.base_url) as remote:  # the local tokenizer is found by name and verified by its digest
            assert remote.info.backend == "elsewise"
            assert remote.info.options["tokenizer"] == "local"
            assert remote.tokenizer_digest == model.tokenizer_digest
        server.models[0]["tokenizer_digest"] = "0" * 64
        with connect(server.base_url) as remote:
            assert remote.info.options["tokenizer"] == "server"
            assert remote.eos_token_ids == (257, 258)
