"""Tokens that the model computes = tokens that are not in the trie yet, counted exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Sized

import numpy as np
import pytest

from runtime import LanguageModel
from runtime.backends.fake import Behaviour
from tests.fakes import KINDS, Gate, assert_right, engine_of, fake_model, settled, some_ids, wait_for_jobs


def answer(model: LanguageModel, ids: list[int], n: int) -> list[int]:
    return asyncio.run(model.sample(ids, n, [], temperature=0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_particles_compute_each_different_path_once(kind: str) -> None:
    # given particles over one prompt that step together and are resampled every fourth step
    prompt = some_ids(0, 100)
    rng = np.random.default_rng(1)
    particles = [list(prompt) for _ in range(16)]
    seen = {tuple(prompt[:n]) for n in range(1, 101)}
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        for step in range(12):
            rows = model.batch_next_token_logprobs_sync(particles)
            assert_right(rows[3], particles[3], kind)
            for particle, row in zip(particles, rows, strict=True):
                particle.append(int(np.argsort(-row)[rng.integers(0, 5)]))
            if step % 4 == 3:
                particles = [list(particles[i]) for i in rng.integers(0, 16, 16)]
            seen |= {tuple(p) for p in particles}
        model.batch_next_token_logprobs_sync(particles)
        # then each different path was computed once
        assert model.metrics().tokens_computed == len(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_each_turn_of_a_growing_chat_computes_only_its_new_tokens(kind: str) -> None:
    # given turns that each add a question and get an answer
    path: list[int] = []
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        for turn in range(6):
            path += some_ids(turn, 20)
            before = model.metrics().tokens_computed
            got = answer(model, path, 8)
            metrics = model.metrics()
            # then a turn computes its question, the last token of the answer before it, and its answer but the last
            new = 20 + (1 if turn else 0)
            assert metrics.last_computed == new
            assert metrics.last_reused == len(path) - new
            assert metrics.tokens_computed - before == new + 7
            path += got
        assert model.metrics().tokens_computed == len(path) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_branches_of_one_transcript_compute_only_their_own_tokens(kind: str) -> None:
    # given a transcript, when branches start after its last token and are continued by sampling
    transcript = some_ids(0, 150)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        model.cache_kv(transcript)
        branches = [[*transcript, token] for token in range(8)]

        async def main() -> list[list[int]]:
            return await model.batch_sample(branches, 6, [], temperature=0.0)

        tails = asyncio.run(main())
        # then each branch computes its own tokens except the last, after which no token is drawn
        assert model.metrics().tokens_computed == 150 + 8 * 6
        for branch, tail in zip(branches, tails, strict=True):
            assert tail[0] == int(model.next_token_logprobs_uncached(branch).argmax())


def test_a_branch_in_the_middle_of_an_edge_computes_one_token() -> None:
    transcript = some_ids(0, 150)
    with fake_model() as model:
        model.cache_kv(transcript)
        for at in (149, 75, 3, 1):
            before = model.metrics().tokens_computed
            path = [*transcript[:at], 255 - transcript[at]]
            assert_right(model.next_token_logprobs_sync(path), path)
            assert model.metrics().tokens_computed - before == 1


def test_a_sibling_reports_its_prefix_as_reused_and_one_token_as_computed() -> None:
    # given an answer, when an alternative to its third token is continued, then reused = prefix, computed = 1
    with fake_model() as model:
        prompt = some_ids(4, 30)
        path = [*prompt, *answer(model, prompt, 10)]
        sibling = [*path[:32], 255 - path[32]]
        answer(model, sibling, 1)
        metrics = model.metrics()
        assert (metrics.last_reused, metrics.last_computed) == (32, 1)


def test_a_prompt_that_is_cached_starts_without_a_forward() -> None:
    with fake_model() as model:
        prompt = some_ids(4, 30)
        model.cache_kv(prompt)
        before = model.metrics()
        answer(model, prompt, 1)
        after = model.metrics()
        assert after.forward_calls == before.forward_calls
        assert (after.last_reused, after.last_computed) == (30, 0)


def test_equal_prompts_in_one_batch_are_prefilled_once() -> None:
    prompt = some_ids(4, 30)
    with fake_model() as model:
        for _ in range(2):  # the second time from the cached row
            tails = asyncio.run(model.batch_sample([prompt] * 5, 1, [], temperature=0.0))
            assert len({tuple(t) for t in tails}) == 1
            assert model.metrics().tokens_computed == 30


def test_requests_that_need_the_same_row_again_share_it() -> None:
    # given KV without the vector that followed it (it was inside a longer text)
    ids = some_ids(4, 40)
    with fake_model() as model:
        model.cache_kv(ids)
        before = model.metrics().tokens_computed

        async def main() -> None:
            await asyncio.gather(model.next_token_logprobs(ids[:20]), *(model.sample(ids[:20], 1, []) for _ in range(4)))

        asyncio.run(main())
        # then the one row that must be computed again is computed once
        assert model.metrics().tokens_computed - before == 1


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_prefill_chunks_are_capped(chunk: int) -> None:
    sizes: list[int] = []
    behaviour = Behaviour(before_forward=lambda tokens: sizes.append(len(tokens)))
    with fake_model(behaviour, prefill_chunk_tokens=chunk) as model:
        ids = some_ids(1, 50)
        assert_right(model.next_token_logprobs_sync(ids), ids)
        assert max(sizes) <= max(chunk, 2)
        assert sum(sizes) == model.metrics().tokens_computed == 50
        assert len(sizes) == model.metrics().forward_calls


def test_a_batch_holds_no_more_tokens_than_max_batch_tokens() -> None:
    sizes: list[int] = []
    behaviour = Behaviour(before_forward=lambda tokens: sizes.append(len(tokens)))
    with fake_model(behaviour, max_batch_tokens=10) as model:
        prompts = [some_ids(seed, 9) for seed in range(7)]
        for row, ids in zip(model.batch_next_token_logprobs_sync(prompts), prompts, strict=True):
            assert_right(row, ids)
        assert max(sizes) <= 10


def test_no_more_rows_decode_at_once_than_max_batch_rows() -> None:
    sizes: list[int] = []
    behaviour = Behaviour()
    with fake_model(behaviour, max_batch_rows=3) as model:
        prompts = [some_ids(seed, 9) for seed in range(8)]
        model.batch_next_token_logprobs_sync(prompts)
        behaviour.before_forward = lambda tokens: sizes.append(len(tokens))
        asyncio.run(model.batch_sample(prompts, 5, [], temperature=0.0))
        assert max(sizes) == 3
        assert sum(sizes) == 8 * 4


def test_a_running_chat_waits_for_one_chunk_at_most() -> None:
    # given an answer that streams, when a long prompt arrives
    calls: list[int] = []
    gate = Gate()

    def before(tokens: Sized) -> None:
        calls.append(len(tokens))
        gate(tokens)

    with fake_model(Behaviour(before_forward=before), prefill_chunk_tokens=32) as model:

        async def main() -> None:
            gate.shut(after=3)
            chat = asyncio.create_task(model.sample(some_ids(1, 5), 30, [], seed=1))
            assert await asyncio.to_thread(gate.reached.wait, 30)
            other = asyncio.ensure_future(model.next_token_logprobs(some_ids(2, 400)))
            await asyncio.to_thread(wait_for_jobs, model, 1)
            gate.open()
            await asyncio.gather(chat, other)

        asyncio.run(main())
        # then decode steps (one token) and chunks take turns: never two chunks in a row while the answer runs
        big = [n > 1 for n in calls]
        first, last = big.index(True, 1), max(i for i, n in enumerate(calls) if n == 1)
        assert not any(a and b for a, b in zip(big[first:last], big[first + 1 : last], strict=False))
        assert sum(big[first:last]) >= 400 // 32


@pytest.mark.parametrize("kind", KINDS)
def test_generations_with_the_same_tokens_share_each_step(kind: str) -> None:
    # given greedy answers to one prompt, and two to the same prompt with one more token
    prompt = some_ids(4, 30)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        other = [*prompt, 7]
        alone = [answer(model, ids, 12) for ids in (prompt, other)]
        model.clear_cache()
        before = model.metrics().tokens_computed
        tails = asyncio.run(model.batch_sample([prompt] * 5 + [other] * 2, 12, [], temperature=0.0))
        # then answers are the same as alone, and each different token is computed once, also where one prompt extends another
        assert tails == [alone[0]] * 5 + [alone[1]] * 2
        assert model.metrics().tokens_computed - before == 31 + 2 * 11


def test_a_batch_limit_bounds_queries_as_well() -> None:
    rows: list[int] = []
    behaviour = Behaviour(before_forward=lambda tokens: rows.append(len(tokens)))
    with fake_model(behaviour, max_batch_rows=3) as model:
        model.cache_kv([5])
        rows.clear()
        batch = [[5, token] for token in range(12)]
        for path, row in zip(batch, asyncio.run(model.batch_next_token_logprobs(batch)), strict=True):
            assert_right(row, path)
        assert rows == [3] * 4


def test_streams_of_a_recurrent_model_share_a_forward_per_token() -> None:
    # given prompts of different lengths that are read one after another
    prompts = [some_ids(seed, 20 + seed) for seed in range(8)]
    with fake_model(Behaviour(recurrent=True)) as model:
        for prompt in prompts:
            model.next_token_logprobs_sync(prompt)
        before = model.metrics()

        async def main() -> list[list[int]]:
            return await asyncio.gather(*(model.sample(prompt, 6, [], temperature=0.0) for prompt in prompts))

        together = asyncio.run(main())
        after = model.metrics()
        # then five tokens after the first of each are five forwards
        assert after.tokens_computed - before.tokens_computed == 8 * 5
        assert after.forward_calls - before.forward_calls == 5
        model.clear_cache()
        # and the tokens are those of each stream alone; where rows cannot share a forward, each forward is counted
        engine_of(model).backend.buckets = False  # the self-test's fallback
        assert [answer(model, prompt, 6) for prompt in prompts] == together
        before = model.metrics()
        assert asyncio.run(main()) == together
        done = model.metrics()
        assert done.forward_calls - before.forward_calls == done.tokens_computed - before.tokens_computed


def test_a_forward_that_fails_is_counted_too() -> None:
    with fake_model(Behaviour(raise_on={7: ValueError("no")})) as model:
        with pytest.raises(Exception, match="no"):
            model.next_token_logprobs_sync([5, 6, 7])
        # then its tokens are counted as well, and nothing of them is kept
        assert model.metrics().forward_calls == 1
        assert model.metrics().tokens_computed == 3
        assert model.prefix_match([5, 6, 7]).tokens == 0


@pytest.mark.parametrize("kind", KINDS)
def test_failed_forwards_and_their_repetitions_are_counted(kind: str) -> None:
    # given answers that stream together, one of which runs into a fault
    prompts = [some_ids(seed, 9) for seed in range(4)]
    behaviour = Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    with fake_model(behaviour) as model:
        tails = [answer(model, prompt, 6) for prompt in prompts]
        guilty = next(t for t in tails[2][1:4] if all(t not in other[:5] for other in (*tails[:2], tails[3])))
        model.clear_cache()
        sizes: list[int] = []
        behaviour.before_forward = lambda tokens: sizes.append(len(tokens))
        behaviour.raise_on = {guilty: ValueError("no")}
        before = model.metrics()

        async def main() -> list[object]:
            wanted = (model.sample(prompt, 6, [], temperature=0.0) for prompt in prompts)
            return await asyncio.gather(*wanted, return_exceptions=True)

        answers = asyncio.run(main())
        assert [isinstance(each, ValueError) for each in answers] == [False, False, True, False]
        # then every forward is counted with all its tokens, also those that failed and those that isolated the fault
        after = settled(model)[0]
        assert after.forward_calls - before.forward_calls == len(sizes)
        assert after.tokens_computed - before.tokens_computed == sum(sizes)
        useful = 4 * 9 + 3 * 5 + tails[2].index(guilty)
        assert sum(sizes) > useful
