"""Batches in which some requests are bad: these get typed errors, all others their right answers, and nothing stays leased."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.errors import (
    ContextOverflowError,
    InvalidRequestError,
    MemoryBudgetError,
    NonFiniteLogitsError,
    RuntimeFault,
)
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.runtime.model.trouble import CASES, Case, NativePanic, audit, troubled

CONTEXT = 400  # tokens
BUDGET_TOKENS = 300  # a prompt between the two fits the context and not the budget
WORKS = ("query", "score", "sample")


def uint64(_: list[int]) -> Any:
    return np.array([1, 1 << 63, (1 << 64) - 1], np.uint64)


BEFORE_THE_MODEL: dict[str, tuple[Callable[[list[int]], Any], type[Exception]]] = {
    "too high": (lambda ids: [*ids, 1 << 20], InvalidRequestError),
    "negative": (lambda ids: [*ids, -1], InvalidRequestError),
    "wraps": (uint64, InvalidRequestError),
    "huge": (lambda ids: [*ids, 1 << 70], InvalidRequestError),
    "floats": (lambda ids: [float(i) for i in ids], InvalidRequestError),
    "bools": (lambda ids: [True] * len(ids), InvalidRequestError),
    "text": (lambda _: "ids", InvalidRequestError),
    "texts": (lambda ids: [str(i) for i in ids], InvalidRequestError),
    "nested": (lambda ids: [ids, ids], InvalidRequestError),
    "ragged": (lambda ids: [ids, ids[1:]], InvalidRequestError),
    "none": (lambda _: None, InvalidRequestError),
    "empty": (lambda _: [], InvalidRequestError),
    "too long": (lambda ids: (ids * CONTEXT)[: CONTEXT + 1], ContextOverflowError),
    "too large": (lambda ids: (ids * CONTEXT)[: CONTEXT - 1], MemoryBudgetError),
}
IN_THE_MODEL: dict[str, type[Exception]] = {
    "exception": ZeroDivisionError,
    "panic": RuntimeFault,
    "nan": NonFiniteLogitsError,
    "inf": NonFiniteLogitsError,
}
VALUES = {"nan": np.nan, "inf": np.inf}


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    with troubled(*request.param, context_length=CONTEXT, prefill_chunk_tokens=16, threads=1) as made:
        made.model.set_kv_budget(budget(made))
        yield made
        audit(made.model)


def budget(case: Case) -> int:
    return BUDGET_TOKENS * case.model.info.kv_bytes_per_token


def greedy(case: Case, ids: list[int], n: int) -> list[int]:
    """The likeliest `n` tokens after `ids`."""
    path = list(ids)
    for _ in range(n):
        path.append(int(case.right(path).argmax()))
    return path[len(ids) :]


async def outcome(case: Case, work: str, ids: Any) -> Any:
    """The answer, or the error that was raised instead."""
    try:
        if work == "query":
            return await case.model.next_token_logprobs(ids)
        if work == "score":
            return await case.model.score(ids, top_k=2)
        return await case.model.sample(ids, 3, [], temperature=0.0)
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return error


def right(case: Case, work: str, ids: list[int], got: Any) -> None:
    """Asserts that a good request has its own answer."""
    if work == "sample" and case.guilty in greedy(case, ids, 2):
        return  # it draws the guilty token itself
    if work == "query":
        case.check(got, ids)
    elif work == "score":
        assert len(got) == len(ids)
        for at in range(1, len(ids)):
            assert got[at].logprob == pytest.approx(float(case.right(ids[:at])[ids[at]]), abs=2e-4)
    else:
        assert len(got) == 3
        row = case.right([*ids, *got[:-1]])
        assert row[got[-1]] == pytest.approx(float(row.max()), abs=2e-4)


guilts = st.sampled_from(["", "", "", *BEFORE_THE_MODEL, "model"])
requests = st.lists(st.tuples(st.sampled_from(WORKS), guilts), min_size=2, max_size=9)


@pytest.mark.sampled(1)
@given(requests=requests, fault=st.sampled_from(sorted(IN_THE_MODEL)), stem=st.integers(0, 5))
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_only_the_bad_requests_of_a_batch_fail(case: Case, requests: list[tuple[str, str]], fault: str, stem: int) -> None:
    # given a batch of every kind of work over one stem, with every kind of mistake in any place
    case.model.clear_cache()  # a row that was answered while the model worked would be answered again
    texts = [[*case.ids(99, stem), *case.ids(i, 2 + i % 4)] for i in range(len(requests))]
    case.faults.raise_on, case.faults.bad_on = {}, {}
    if fault in VALUES:
        case.faults.bad_on = {case.guilty: VALUES[fault]}
    else:
        error = ZeroDivisionError("broken kernel") if fault == "exception" else NativePanic("panic")
        case.faults.raise_on = {case.guilty: error}
    asked: list[Any] = []
    for text, (_, guilt) in zip(texts, requests, strict=True):
        if guilt == "model":
            text.append(case.guilty)
        asked.append(BEFORE_THE_MODEL[guilt][0](text) if guilt in BEFORE_THE_MODEL else text)

    async def main() -> list[Any]:
        return list(await asyncio.gather(*(outcome(case, w, ids) for (w, _), ids in zip(requests, asked, strict=True))))

    # when all arrive at once
    got = asyncio.run(main())
    # then the bad ones get errors of the right types, and the others right answers
    for (work, guilt), text, one in zip(requests, texts, got, strict=True):
        if guilt in BEFORE_THE_MODEL:
            assert type(one) is BEFORE_THE_MODEL[guilt][1], guilt
        elif guilt == "model":
            assert type(one) is IN_THE_MODEL[fault]
        else:
            right(case, work, text, one)
    audit(case.model)
    # and texts that failed are answered once the model works again
    case.faults.raise_on, case.faults.bad_on = {}, {}
    for text in texts[:3]:
        case.check(case.model.next_token_logprobs_sync(text), text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", sorted(IN_THE_MODEL))
def test_a_failing_stream_keeps_its_tokens_and_does_not_affect_the_others(case: Case, fault: str) -> None:
    # given streams of which one will draw a token at which the model fails
    prompts = [case.ids(seed, 4) for seed in range(4)]
    options = GenerationOptions(max_tokens=8, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)

    async def collect(prompt: list[int]) -> tuple[list[int], BaseException | None]:
        said: list[int] = []
        try:
            async for record in case.model.generate(prompt, options):
                said.append(record.token_id)  # noqa: PERF401  # tokens before an error must be kept
        except Exception as error:  # noqa: BLE001  # the test looks at it
            return said, error
        return said, None

    async def main() -> list[tuple[list[int], BaseException | None]]:
        return list(await asyncio.gather(*(collect(p) for p in prompts)))

    case.faults.raise_on, case.faults.bad_on = {}, {}
    plain = [said for said, _ in asyncio.run(main())]
    others = {t for i, said in enumerate(plain) for t in (*said, *prompts[i]) if i != 1} | set(prompts[1])
    fresh = [i for i, token in enumerate(plain[1][:-1]) if token not in others and token not in plain[1][:i]]
    at = next(i for i in fresh if i >= 2)  # late enough for its forward to be begun ahead
    if fault in VALUES:
        case.faults.bad_on = {plain[1][at]: VALUES[fault]}
    else:
        case.faults.raise_on = {plain[1][at]: ZeroDivisionError("broken") if fault == "exception" else NativePanic("panic")}
    case.model.clear_cache()
    # when they run together
    for i, (said, error) in enumerate(asyncio.run(main())):
        assert said == (plain[1][: at + 1] if i == 1 else plain[i])
        assert type(error) is (IN_THE_MODEL[fault] if i == 1 else type(None))
    case.faults.raise_on, case.faults.bad_on = {}, {}
    audit(case.model)


def test_a_batch_call_with_one_bad_member_raises_its_kind_of_error(case: Case) -> None:
    for bad, kind in (([], InvalidRequestError), ([1] * (CONTEXT + 1), ContextOverflowError), ([1.5], InvalidRequestError)):
        batch: list[Any] = [case.ids(1, 4), bad, case.ids(2, 4)]
        works = (
            lambda batch=batch: case.model.batch_next_token_logprobs_sync(batch),
            lambda batch=batch: asyncio.run(case.model.batch_next_token_logprobs(batch)),
            lambda batch=batch: asyncio.run(case.model.batch_sample(batch, 2, [])),
        )
        for work in works:
            with pytest.raises(kind):
                work()
    for none in (case.model.batch_next_token_logprobs, lambda batch: case.model.batch_sample(batch, 2, [])):
        with pytest.raises(InvalidRequestError, match="empty batch"):
            asyncio.run(none([]))
    audit(case.model)
