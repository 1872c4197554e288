from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import (
    ContextOverflowError,
    FullVocabUnavailableError,
    InvalidRequestError,
    LanguageModel,
    Priority,
    RemoteError,
    connect,
)
from tests.runtime.remote.servers import Refused, Server, event, send, serving, start_events
from tests.runtime.remote.test_answers import wait_until

TEXT = "Some words, zwölf Möwen."


def test_a_full_vector_equals_that_of_the_local_model(remote: LanguageModel, model: LanguageModel) -> None:
    ids = model.tokenize(TEXT)
    assert remote.tokenize(TEXT) == ids
    np.testing.assert_allclose(remote.next_token_logprobs_sync(ids), model.next_token_logprobs_sync(ids), atol=1e-6)


def test_top_log_probabilities_and_the_tail_mass_equal_those_of_the_local_model(
    remote: LanguageModel, model: LanguageModel
) -> None:
    ids = model.tokenize(TEXT)
    ours, theirs = model.top_logprobs_sync(ids, 7, chosen=[3, 200]), remote.top_logprobs_sync(ids, 7, chosen=[3, 200])
    assert theirs.ids.tolist() == ours.ids.tolist()
    np.testing.assert_allclose(theirs.logprobs, ours.logprobs, atol=1e-6)
    assert theirs.tail_mass == pytest.approx(ours.tail_mass, abs=1e-6)
    assert theirs.tail_logprob == pytest.approx(np.log(theirs.tail_mass))
    assert theirs.chosen == pytest.approx(ours.chosen, abs=1e-6)
    full = model.next_token_logprobs_sync(ids)
    assert ours.tail_mass == pytest.approx(1 - np.exp(full[ours.ids].astype(float)).sum(), abs=1e-6)


@pytest.mark.parametrize("length", [64, 150])
def test_score_windows_leave_room_for_one_token_in_the_context(
    server: Server, model: LanguageModel, folder: Path, length: int
) -> None:
    ids = (model.tokenize(TEXT) * 10)[:length]
    with connect(server.base_url, tokenizer=folder, context_length=64) as remote:
        found = [record.logprob for record in remote.score_sync(ids, 1, stride=20)]
        assert max(len(body["prompt"]) for body in server.bodies("/v1/completions")) == 63
    whole = [record.logprob for record in model.score_sync(ids[:63], 1)]
    windows = [model.score_sync(ids[begin : begin + 63], 1) for begin in range(20, length - 42, 20)]
    wanted = [*whole, *(record.logprob for window in windows for record in window[43:])]
    assert found[0] is None
    assert found[1:] == pytest.approx(wanted[1:], abs=1e-6)


@pytest.mark.parametrize("owner", ["vllm", "elsewise"])
def test_chosen_ids_over_the_limit_of_a_request_are_split(model: LanguageModel, folder: Path, owner: str) -> None:
    ids, chosen = model.tokenize(TEXT), list(range(200))
    with serving(model, owner=owner) as server, connect(server.base_url, tokenizer=folder) as remote:
        ours, theirs = model.top_logprobs_sync(ids, 3, chosen=chosen), remote.top_logprobs_sync(ids, 3, chosen=chosen)
        assert theirs.ids.tolist() == ours.ids.tolist()
        assert theirs.chosen == pytest.approx(ours.chosen, abs=1e-6)
        sent = sum("logprob_token_ids" in body for body in server.bodies("/v1/completions"))
        assert sent == (0 if owner == "vllm" else 2)  # with logprob_token_ids, vLLM answers concurrent requests wrongly


@pytest.mark.parametrize("orders", [True, False])
def test_a_priority_is_sent_to_servers_that_accept_one(model: LanguageModel, folder: Path, orders: bool) -> None:
    with serving(model, orders=orders) as server, connect(server.base_url, tokenizer=folder) as remote:
        assert ("takes a priority" in remote.info.capabilities) is orders
        server.seen.clear()
        list(remote.generate_sync([5, 6], max_tokens=1))
        remote.top_logprobs_sync([5, 6], 2)
        remote.score_sync([5, 6], priority=Priority.BACKGROUND)
        remote.top_logprobs_sync([5, 6], 2, priority=Priority.BACKGROUND)
        list(remote.top_many_sync([[5, 6]], 2))  # background priority by default
        sent = [body.get("priority") for body in server.bodies("/v1/completions")]
        assert sent == ([-1, None, 1, 1, 1] if orders else [None] * 5)


class Holding(Server):
    """Refuses one of several prompts once all have arrived, and never answers the others."""

    all: asyncio.Barrier | None = None

    async def _prompt(self, body: dict[str, Any]) -> list[int]:
        ids = await super()._prompt(body)
        if self.all is not None:
            await self.all.wait()
            if ids != [9]:
                await asyncio.Event().wait()
            raise Refused(400, "not this one")
        return ids


@pytest.mark.parametrize("asks", ["batch_top_logprobs", "batch_sample"])
def test_an_error_of_one_row_cancels_the_others_at_the_server(model: LanguageModel, folder: Path, asks: str) -> None:
    async def ask(remote: LanguageModel, server: Server) -> None:
        batch = [[5], [9], [7]]
        asked = remote.batch_top_logprobs(batch, 2) if asks == "batch_top_logprobs" else remote.batch_sample(batch, 9, [])
        with pytest.raises(InvalidRequestError, match="not this one"):
            await asked
        await asyncio.to_thread(wait_until, lambda: server.running == 0)

    with serving(model, Holding) as server, connect(server.base_url, tokenizer=folder) as remote:
        assert isinstance(server, Holding)
        server.all = asyncio.Barrier(3)
        asyncio.run(ask(remote, server))


def test_fewer_alternatives_than_requested_are_a_remote_error(server: Server, remote: LanguageModel) -> None:
    short = {"token_logprobs": [-1.0], "tokens": ["token_id:65"], "top_logprobs": [{"token_id:65": -1.0, "token_id:66": -2.0}]}
    choice = {"index": 0, "text": "A", "token_ids": [65], "finish_reason": "length", "logprobs": short}

    async def answer(writer: Any) -> None:
        send(writer, 200, {"choices": [choice]})

    async def stream(writer: Any) -> None:
        start_events(writer)
        event(writer, {"choices": [choice]})

    server.raw["/v1/completions"] = answer
    with pytest.raises(RemoteError, match="2 alternatives where 5 were asked for"):
        remote.top_logprobs_sync([1, 2], 5)
    with pytest.raises(RemoteError, match="2 of 259"):
        remote.next_token_logprobs_sync([1, 2])
    server.raw["/v1/completions"] = stream
    (record,) = remote.generate_sync([1, 2], max_tokens=1)
    assert (record.logprob, record.rank) == (-1.0, None)


@pytest.mark.slow
def test_a_kept_connection_closed_by_the_server_is_reopened(server: Server, remote: LanguageModel) -> None:
    expected = remote.top_logprobs_sync([1, 2], 5)
    server.keeps = False
    for _ in range(3):
        time.sleep(0.05)  # time for the close of the connection to arrive
        found = remote.top_logprobs_sync([1, 2], 5)
        assert (found.ids.tolist(), found.logprobs.tolist()) == (expected.ids.tolist(), expected.logprobs.tolist())


def test_a_request_that_may_have_reached_the_server_is_not_repeated(server: Server, remote: LanguageModel) -> None:
    async def nothing(writer: Any) -> None:
        del writer

    remote.top_logprobs_sync([1, 3], 5)  # leaves a connection
    before = len(server.seen)
    server.raw["/v1/completions"] = nothing
    with pytest.raises(RemoteError, match="was lost"):
        remote.top_logprobs_sync([1, 2], 5)
    assert len(server.seen) == before + 1


def test_full_vectors_are_refused_where_the_server_caps_alternatives(model: LanguageModel, folder: Path) -> None:
    with serving(model, cap=20) as server, connect(server.base_url, tokenizer=folder) as remote:
        with pytest.raises(FullVocabUnavailableError, match="at most 20 of 259"):
            remote.next_token_logprobs_sync([1, 2])
        with pytest.raises(InvalidRequestError, match="at most 20"):
            remote.top_logprobs_sync([1, 2], 21)
        assert len(remote.top_logprobs_sync([1, 2], 20).ids) == 20


def test_equal_contexts_are_requested_once_with_limited_concurrency(server: Server, folder: Path) -> None:
    with connect(server.base_url, tokenizer=folder) as remote:
        before, server.most_running = len(server.bodies("/v1/completions")), 0
        answers = remote.batch_top_logprobs_sync([[1, 2, i % 40] for i in range(120)], 3)
    assert all((answers[i].ids == answers[i % 40].ids).all() for i in range(120))
    assert len(server.bodies("/v1/completions")) - before == 40
    assert server.most_running <= 16


def test_several_event_loops_and_blocking_calls_share_a_connection(remote: LanguageModel, model: LanguageModel) -> None:
    async def ask() -> list[int]:
        return [int(top.ids[0]) for top in await remote.batch_top_logprobs([[1], [2], [3]], 1)]

    wanted = [int(model.top_logprobs_sync([i], 1).ids[0]) for i in (1, 2, 3)]
    assert asyncio.run(ask()) == wanted
    assert asyncio.run(ask()) == wanted
    assert [int(remote.top_logprobs_sync([i], 1).ids[0]) for i in (1, 2, 3)] == wanted


def test_scores_equal_those_of_the_local_model_except_the_entropy(remote: LanguageModel, model: LanguageModel) -> None:
    ids = model.tokenize(TEXT)
    for start in (0, 5):
        ours, theirs = model.score_sync(ids, 4, start), remote.score_sync(ids, 4, start)
        assert [record.token_id for record in theirs] == [record.token_id for record in ours]
        for a, b in zip(ours, theirs, strict=True):
            assert (b.rank, b.top_ids, b.entropy) == (a.rank, a.top_ids, None)
            assert b.logprob == (None if a.logprob is None else pytest.approx(a.logprob, abs=1e-6))
    assert remote.score_sync(ids, 0)[3].top_ids == ()


def test_invalid_queries_are_refused_without_a_request(server: Server, remote: LanguageModel) -> None:
    before = len(server.seen)
    with pytest.raises(InvalidRequestError, match="outside the vocabulary of 259"):
        remote.top_logprobs_sync([259])
    with pytest.raises(ContextOverflowError):
        remote.top_logprobs_sync([1] * 2049)
    assert len(server.seen) == before


def test_a_prompt_that_fills_the_context_is_refused(remote: LanguageModel) -> None:
    with pytest.raises(ContextOverflowError, match="2,049 tokens do not fit into the context of 2,048"):
        remote.top_logprobs_sync([1] * 2048)


def test_embeddings_are_normalised_to_length_one(model: LanguageModel, folder: Path) -> None:
    with serving(model, embeddings=True) as server, connect(server.base_url, tokenizer=folder) as remote:
        texts = ["one", "two", "one"]
        np.testing.assert_allclose(remote.embed_sync(texts), model.embed_sync(texts), atol=1e-5)
        assert "embeddings" in remote.info.capabilities


def test_cancelled_queries_close_their_connections(server: Server, folder: Path) -> None:
    async def ask(remote: LanguageModel) -> None:
        hang = asyncio.Event()

        async def silent(_: object) -> None:
            await hang.wait()

        server.raw["/v1/completions"] = silent
        query = asyncio.ensure_future(remote.top_logprobs([1, 2], 3))
        await asyncio.sleep(0.1)
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query
        del server.raw["/v1/completions"]
        assert len((await remote.top_logprobs([1, 2], 3)).ids) == 3
        await remote.close_async()

    asyncio.run(ask(connect(server.base_url, tokenizer=folder)))


def test_a_query_made_during_a_reset_is_sent_as_a_new_request(server: Server, folder: Path) -> None:
    async def ask(remote: LanguageModel) -> None:
        asked, hang = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def silent(_: object) -> None:
            loop.call_soon_threadsafe(asked.set)
            await hang.wait()

        server.raw["/v1/completions"] = silent
        before = asyncio.ensure_future(remote.top_logprobs([1, 2], 3))
        await asked.wait()
        del server.raw["/v1/completions"]
        _, after = await asyncio.gather(remote.reset_async_queries_async(), remote.top_logprobs([1, 2], 3))
        assert len(after.ids) == 3
        with pytest.raises(asyncio.CancelledError):
            await before
        await remote.close_async()

    asyncio.run(ask(connect(server.base_url, tokenizer=folder)))


def test_messages_that_are_not_json_are_refused_without_a_request(server: Server) -> None:
    with connect(server.base_url, tokenizer="server") as remote:
        before = len(server.seen)
        with pytest.raises(InvalidRequestError, match="cannot be sent"):
            remote.render_chat([{"role": "user", "content": "a", "of": object()}])
        assert len(server.seen) == before
