"""More at once than the budget holds: prompts wait for those before them, running answers go first, every request is served."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from runtime import load
from runtime.backends.fake import Behaviour
from runtime.errors import MemoryBudgetError, SessionClosedError
from tests.fakes import KINDS, Gate, assert_right, fake_model, reference, settled, some_ids, wait_for_close

TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_do_not_fit_together_are_answered_one_after_another(kind: str) -> None:
    # given texts that fill most of the budget each, and some small ones
    texts = [some_ids(seed, n) for seed, n in enumerate([80, 90, 10, 100, 70, 5, 95, 85, 20])]
    with fake_model(
        Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), kv_cache_bytes=120 * TOKEN
    ) as model:

        async def main() -> None:
            rows = asyncio.gather(*(model.next_token_logprobs(text) for text in texts))
            scores = asyncio.gather(*(model.score(text) for text in texts[:3]))
            for text, row in zip(texts, await rows, strict=True):
                assert_right(row, text, kind)
            for text, records in zip(texts, await scores, strict=False):
                expected = float(reference(text[:-1], kind)[text[-1]])
                assert records[-1].logprob == pytest.approx(expected, abs=1e-5)

        asyncio.run(main())
        metrics, report = settled(model)
        assert metrics.kv_peak_bytes <= metrics.kv_budget
        assert report.leases == 0
        # while one that is too large by itself is refused at once
        with pytest.raises(MemoryBudgetError, match="130 tokens need"):
            model.next_token_logprobs_sync(some_ids(99, 130))


def test_a_running_answer_goes_before_a_prompt() -> None:
    # given an answer that needs most of the budget in the end, and a long prompt that arrives in the middle
    with fake_model(Behaviour(delay=0.001), kv_cache_bytes=220 * TOKEN) as model:

        async def main() -> tuple[list[int], object]:
            answer = asyncio.ensure_future(model.sample(some_ids(1, 20), 150, [], temperature=0.0))
            await asyncio.sleep(0.02)
            later = asyncio.ensure_future(model.next_token_logprobs(some_ids(2, 180)))
            return await answer, await later

        said, row = asyncio.run(main())
        # then both are served
        assert len(said) == 150
        assert_right(row, some_ids(2, 180))  # type: ignore[arg-type]  # a row
        assert settled(model)[0].kv_peak_bytes <= 220 * TOKEN


def test_waiting_requests_can_be_cancelled_and_end_when_the_model_is_closed() -> None:
    gate = Gate()
    model = load((Behaviour(before_forward=gate), None), backend="fake", kv_cache_bytes=120 * TOKEN)

    async def main() -> None:
        works = [asyncio.ensure_future(model.next_token_logprobs(some_ids(seed, 100))) for seed in range(4)]
        gate.shut()
        await asyncio.sleep(0.05)
        works[1].cancel()
        works[2].cancel()
        gate.open()
        assert_right(await works[0], some_ids(0, 100))
        assert_right(await works[3], some_ids(3, 100))
        assert works[1].cancelled()
        # and when the model is closed, no request waits for ever
        gate.shut()
        works = [asyncio.ensure_future(model.next_token_logprobs(some_ids(10 + seed, 100))) for seed in range(3)]
        await asyncio.to_thread(gate.reached.wait, 10)
        closing = asyncio.ensure_future(asyncio.to_thread(model.close))
        await asyncio.to_thread(wait_for_close, model)
        gate.open()
        await closing
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            assert isinstance(outcome, SessionClosedError | np.ndarray)

    asyncio.run(main())
