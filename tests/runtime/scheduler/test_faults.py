"""A request that fails affects no other request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import LanguageModel
from runtime.backends.fake import Behaviour
from runtime.errors import NonFiniteLogitsError, RuntimeFault
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord
from tests.fakes import KINDS, Gate, assert_right, engine_of, fake_model, query_job, reference, settled, some_ids
from tests.runtime.model.trouble import troubled

GUILTY = 258  # a token that only guilty prompts hold


class NativePanic(BaseException):
    """What a native library's panic looks like: no Exception."""


async def outcomes(model: LanguageModel, prompts: Sequence[list[int]]) -> list[Any]:
    return list(await asyncio.gather(*(model.next_token_logprobs(p) for p in prompts), return_exceptions=True))


def fault(kind: str) -> Behaviour:
    if kind == "nan":
        return Behaviour(nan_on=frozenset({GUILTY}))
    return Behaviour(raise_on={GUILTY: ZeroDivisionError("broken kernel") if kind == "exception" else NativePanic("panic")})


EXPECTED = {"exception": ZeroDivisionError, "panic": RuntimeFault, "nan": NonFiniteLogitsError}


@pytest.mark.slow
@given(
    kind=st.sampled_from(sorted(EXPECTED)),
    recurrent=st.booleans(),
    guilty=st.sets(st.integers(0, 11), max_size=3),
    chunk=st.sampled_from([3, 512]),
    shared=st.integers(0, 6),
)
@settings(max_examples=25, deadline=None)
def test_only_the_guilty_fail(kind: str, recurrent: bool, guilty: set[int], chunk: int, shared: int) -> None:
    # given a batch over a common stem, some of it guilty at any place
    stem = some_ids(99, shared)
    prompts = [[*stem, *some_ids(i, 3 + i % 4)] for i in range(12)]
    for i in guilty:
        prompts[i] = [*prompts[i], GUILTY]
    behaviour = fault(kind)
    behaviour.recurrent = recurrent
    with fake_model(behaviour, prefill_chunk_tokens=chunk) as model:
        # when it is computed, then the guilty get their error, the others their answer
        for i, got in enumerate(asyncio.run(outcomes(model, prompts))):
            if i in guilty:
                assert type(got) is EXPECTED[kind]
            else:
                assert_right(got, prompts[i], "recurrent" if recurrent else "attention")
        # and the model goes on
        behaviour.raise_on, behaviour.nan_on = {}, frozenset()
        for i in guilty:
            assert_right(model.next_token_logprobs_sync(prompts[i]), prompts[i], "recurrent" if recurrent else "attention")


def test_a_panic_is_told_with_its_cause() -> None:
    with fake_model(fault("panic")) as model, pytest.raises(RuntimeFault, match="panic") as caught:
        model.next_token_logprobs_sync([1, GUILTY])
    assert isinstance(caught.value.__cause__, NativePanic)


def test_nan_names_the_position() -> None:
    with fake_model(fault("nan")) as model:
        with pytest.raises(NonFiniteLogitsError, match="position 2"):
            model.next_token_logprobs_sync([1, 2, GUILTY])
        with pytest.raises(NonFiniteLogitsError):
            asyncio.run(model.score([1, GUILTY, 2]))


def test_a_waiter_that_joined_the_guilty_fails_too() -> None:
    with fake_model(fault("exception")) as model:
        got = asyncio.run(outcomes(model, [[1, GUILTY], [1, GUILTY], [1, 2]]))
        assert [type(g) for g in got[:2]] == [ZeroDivisionError] * 2
        assert_right(got[2], [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_a_stream_that_fails_in_the_middle_keeps_its_records(kind: str, recurrent: bool) -> None:
    # given streams of which one will draw a token at which the model fails
    behaviour = Behaviour(recurrent=recurrent)
    name = "recurrent" if recurrent else "attention"
    prompts = [some_ids(seed, 5) for seed in range(5)]
    options = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)

    async def collect(model: LanguageModel, prompt: list[int]) -> tuple[list[TokenRecord], BaseException | None]:
        records: list[TokenRecord] = []
        try:
            async for record in model.generate(prompt, options):
                records.append(record)  # noqa: PERF401  # an error must find those that came before it
        except Exception as error:  # noqa: BLE001  # the test looks at it
            return records, error
        return records, None

    async def all_of(model: LanguageModel) -> list[tuple[list[TokenRecord], BaseException | None]]:
        return list(await asyncio.gather(*(collect(model, p) for p in prompts)))

    with fake_model(Behaviour(recurrent=recurrent)) as model:
        plain = [[r.token_id for r in records] for records, _ in asyncio.run(all_of(model))]
    others = {t for i, ids in enumerate(plain) for t in ids if i != 2} | {t for prompt in prompts for t in prompt}
    trouble = next(t for t in plain[2][3:] if t not in others)
    at = plain[2].index(trouble)
    behaviour.raise_on = fault(kind).raise_on and {trouble: fault(kind).raise_on[GUILTY]}
    behaviour.nan_on = frozenset({trouble}) if kind == "nan" else frozenset()
    with fake_model(behaviour) as model:
        got = asyncio.run(all_of(model))
        for i, (records, error) in enumerate(got):
            assert [r.token_id for r in records] == (plain[i][: at + 1] if i == 2 else plain[i])
            assert type(error) is (EXPECTED[kind] if i == 2 else type(None))
        assert_right(model.next_token_logprobs_sync([*prompts[2], *plain[2][:at]]), [*prompts[2], *plain[2][:at]], name)


@pytest.mark.parametrize("streams", [0, 8])
def test_cancelled_requests_in_a_failing_batch(streams: int) -> None:
    # given a batch in which half is cancelled while the model runs into a fault
    gate = Gate()
    behaviour = fault("exception")
    behaviour.before_forward = gate
    with fake_model(behaviour) as model:

        async def main() -> None:
            gate.shut()
            prompts = [[*some_ids(i, 4), GUILTY] if i in (0, 5) else some_ids(i, 4) for i in range(8)]
            tasks = [asyncio.create_task(model.next_token_logprobs(p)) for p in prompts]
            others = [asyncio.create_task(model.sample(p[:4], 5, [], seed=1)) for p in prompts[:streams]]
            await asyncio.to_thread(gate.reached.wait)
            for task in (*tasks[:6], *others[:6]):  # all of one half, and more
                task.cancel()
            await asyncio.sleep(0.02)
            gate.open()
            for got, prompt in zip(await asyncio.gather(*tasks[6:]), prompts[6:], strict=True):
                assert_right(got, prompt)
            assert [len(ids) for ids in await asyncio.gather(*others[6:])] == [5] * len(others[6:])

        asyncio.run(main())
        assert_right(model.next_token_logprobs_sync([3, 4]), [3, 4])


def test_kv_that_cannot_be_kept_ends_no_stream(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    # given a model whose KV the trie holds copies of
    prompt = some_ids(1, 5)
    with fake_model(Behaviour(recurrent=True)) as model:
        model.cache_kv(prompt)

        def take(*_: object) -> None:
            raise MemoryError("no room for a copy")

        monkeypatch.setattr(engine_of(model).backend, "take", take)
        ids = asyncio.run(model.sample(prompt, 80, [], temperature=0.0))
        assert len(ids) == 80
        assert ids[0] == int(reference(prompt, "recurrent").argmax())
        assert "could not be kept" in caplog.text
        monkeypatch.undo()
        assert_right(model.next_token_logprobs_sync([*prompt, *ids]), [*prompt, *ids], "recurrent")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_queries_that_follow_a_running_stream(kind: str) -> None:
    # given a stream whose tip moves on, when every prefix of its text is asked for meanwhile
    prompt = some_ids(1, 6)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:

        async def main() -> None:
            path, asked = list(prompt), list[tuple[list[int], asyncio.Task[Any]]]()
            async for record in model.generate(prompt, GenerationOptions(max_tokens=60, seed=3, ignore_eos=True)):
                path.append(record.token_id)
                for text in (list(path), [*path[:-1], 7], [*path, 9, 8]):
                    asked.append((text, asyncio.create_task(model.next_token_logprobs(text))))
            for text, task in asked:
                assert_right(await task, text, kind)

        asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_ends_inside_anothers(kind: str) -> None:
    # given a stream whose prompt is the beginning of a query's text, in one batch and either order
    text = some_ids(1, 40)
    for first in (True, False):
        with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:

            async def main(model: LanguageModel = model, first: bool = first) -> None:
                tasks: list[asyncio.Task[Any]] = []
                for stream in (first, not first):
                    work: Any = model.sample(text[:15], 8, [], temperature=0.0) if stream else model.next_token_logprobs(text)
                    tasks.append(asyncio.create_task(work))
                tail, row = (await asyncio.gather(*tasks))[:: 1 if first else -1]
                assert_right(row, text, kind)
                path = text[:15]
                for token in tail:
                    assert token == int(reference(path, kind).argmax())
                    path = [*path, token]

            asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_that_part_while_chunks_are_small(kind: str) -> None:
    # given many prompts over one stem and less room in a batch than they need
    stem = some_ids(0, 70)
    prompts = [[*stem[: 30 + 10 * (i % 5)], *some_ids(i, 20)] for i in range(10)]
    with fake_model(
        Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), prefill_chunk_tokens=16, max_batch_tokens=16
    ) as model:
        for row, prompt in zip(model.batch_next_token_logprobs_sync(prompts), prompts, strict=True):
            assert_right(row, prompt, kind)
        if kind == "attention":
            assert model.metrics().tokens_computed == len({tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)})
        assert settled(model)[1].leases == 0


def test_answers_are_finite_and_sum_to_one_after_everything() -> None:
    with fake_model(fault("nan")) as model:
        asyncio.run(outcomes(model, [[GUILTY], [1, GUILTY, 3], [2]]))
        row = model.next_token_logprobs_sync([1, GUILTY, 3])  # asked for after the NaN row, not at it
        assert float(np.exp(row.astype(np.float64)).sum()) == pytest.approx(1.0, abs=1e-6)


def test_a_bad_row_leaves_nothing_pending() -> None:
    # given eight texts that share a stem, whose tails are copied for the trie in one go, and one of them is bad
    with troubled("hf", "llama", device="cpu", kv_dtype="q8") as case:
        model, stem = case.model, case.ids(1, 4)
        case.faults.bad_on = {case.guilty: np.nan}
        model.next_token_logprobs_sync(stem)
        # when they are asked for at once
        got = asyncio.run(outcomes(model, [[*stem, case.guilty if i == 3 else i + 60] for i in range(8)]))
        assert [isinstance(one, NonFiniteLogitsError) for one in got] == [i == 3 for i in range(8)]
        # then the others are kept, and the copy of the bad one does not stay behind
        assert [model.prefix_match([*stem, i + 60]).tokens for i in range(8)] == [4 if i == 3 else 5 for i in range(8)]
        settled(model)
        cache = engine_of(model).scheduler.cache
        assert engine_of(model).call(lambda: (cache.kv_budget.pending, cache.copied_tails)).result() == (0, {})


def test_good_queries_of_a_failing_batch_are_answered_part_by_part() -> None:
    # given sixteen queries of which the last is bad
    answers: list[Future[Any]] = [Future() for _ in range(16)]
    answered: list[int] = []  # before each forward
    behaviour = fault("exception")
    behaviour.before_forward = lambda _: answered.append(sum(answer.done() for answer in answers))
    with fake_model(behaviour) as model:
        texts = [[*some_ids(i, 4), *([GUILTY] if i == 15 else [])] for i in range(16)]
        jobs = [query_job(model, text, answer) for text, answer in zip(texts, answers, strict=True)]
        # when they are computed as one batch
        engine_of(model).submit(jobs)
        for text, answer in zip(texts[:15], answers[:15], strict=True):
            assert_right(answer.result(60)[0], text)
        with pytest.raises(ZeroDivisionError):
            answers[15].result(60)
    # then each half without it is answered before the other is tried
    assert answered == [0, 0, 8, 8, 12, 12, 14, 14, 15]
