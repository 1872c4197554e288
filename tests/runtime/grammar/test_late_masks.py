"""A grammar with slow masks delays only its own answer: the tests hold its masks until the other requests are done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runtime import BeamOptions, GenerationOptions, Grammar, LanguageModel, SpeculativeOptions
from runtime.backends.fake import Behaviour
from runtime.grammar.constraint import Constraint
from runtime.scheduler.loop import STALLED_SECONDS
from tests.fakes import KINDS, assert_right, fake_model, some_ids, until
from tests.runtime.grammar.matchers import watch_masks

SLOW = Grammar.regex("[a-c]{8}(-[a-c]{4})?")
SPECULATIVE = SpeculativeOptions(method="prompt_lookup", num_tokens=4)
QUICK = Grammar.regex("[0-9]{12}")
PROMPT = some_ids(1, 12)


class Masks:
    """Holds the masks of `SLOW` until the gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self._pass = 0
        watch_masks(monkeypatch, self._hold)

    def shut(self, *, after: int = 0) -> None:
        """Holds masks from now on; the first `after` of them still pass."""
        self._pass = after
        self.reached.clear()
        self.gate.clear()

    def _hold(self, grammar: str, _: int) -> None:
        if "a-c" not in grammar or self.gate.is_set():
            return
        if self._pass > 0:
            self._pass -= 1
            return
        self.reached.set()
        assert self.gate.wait(60)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Masks:
    return Masks(monkeypatch)


async def answer(model: LanguageModel, ids: list[int], options: GenerationOptions) -> list[object]:
    return [(r.token_id, r.origin, r.rank, r.finish_reason) async for r in model.generate(ids, options)]


async def branches(model: LanguageModel) -> list[object]:
    options = GenerationOptions(grammar=SLOW, seed=3)
    got = [(n, r.token_id, r.origin, r.rank, r.finish_reason) async for n, r in model.continue_many(PROMPT, 3, options)]
    return [*sorted(got, key=lambda each: each[0])]


async def searched(model: LanguageModel) -> list[object]:
    found = await model.beam_generate(PROMPT, BeamOptions(grammar=SLOW, width=3, num_return=3, max_tokens=20))
    return [(each.ids, round(each.score, 4)) for each in found]


REQUESTS: dict[str, Callable[[LanguageModel], Coroutine[Any, Any, list[object]]]] = {
    "answer": lambda model: answer(model, PROMPT, GenerationOptions(grammar=SLOW, seed=3)),
    "stopped": lambda model: answer(model, PROMPT, GenerationOptions(grammar=SLOW, seed=3, stop=("cb", "ab", "bc"))),
    "branches": branches,
    "beams": searched,
    "guessed": lambda model: answer(
        model, [*b"abcabcabcabc"], GenerationOptions(grammar=SLOW, seed=3, speculative=SPECULATIVE)
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("name", REQUESTS)
def test_other_requests_are_answered_while_a_mask_is_computed(name: str, after: int, kind: str, masks: Masks) -> None:
    if name == "guessed" and kind == "recurrent":
        return  # refused: see test_speculation
    plain = GenerationOptions(max_tokens=30, seed=1, ignore_eos=True)
    quick = GenerationOptions(grammar=QUICK, seed=5)

    async def main(model: LanguageModel) -> None:
        wanted = await REQUESTS[name](model)
        beside = [await answer(model, some_ids(2, 9), plain), await answer(model, some_ids(3, 9), quick)]
        model.clear_cache()
        # given a request that waits for a mask, and others before it and after it
        masks.shut(after=after)
        first = asyncio.ensure_future(answer(model, some_ids(2, 9), plain))
        slow = asyncio.ensure_future(REQUESTS[name](model))
        await asyncio.to_thread(masks.reached.wait, 30)
        # then all others are answered
        async with asyncio.timeout(30):
            assert [await first, await answer(model, some_ids(3, 9), quick)] == beside
            assert_right(await model.next_token_logprobs(some_ids(4, 20)), some_ids(4, 20), kind)
        assert not slow.done()
        # and the delayed answer equals the one computed alone
        masks.gate.set()
        assert await slow == wanted

    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        asyncio.run(main(model))


@pytest.mark.parametrize("name", ["answer", "branches", "beams"])
def test_a_request_that_waits_for_its_mask_can_be_cancelled(name: str, masks: Masks) -> None:
    async def main(model: LanguageModel) -> None:
        masks.shut()
        slow = asyncio.ensure_future(REQUESTS[name](model))
        await asyncio.to_thread(masks.reached.wait, 30)
        await model.prefix_match_async(PROMPT)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        # then no trace of it is left, and the same request can be repeated
        async with asyncio.timeout(30):
            assert_right(await model.next_token_logprobs(PROMPT), PROMPT)
        masks.gate.set()
        assert await REQUESTS[name](model)

    with fake_model() as model:
        asyncio.run(main(model))


def test_waiting_for_a_mask_does_not_spin_while_another_request_waits_for_memory(
    masks: Masks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []
    ready = Constraint.ready

    def noted(self: Constraint, patience: float | None) -> bool:
        asked.append(patience)
        return ready(self, patience)

    monkeypatch.setattr(Constraint, "ready", noted)

    async def main(model: LanguageModel) -> None:
        # given an answer that waits for its mask and holds the KV memory that a long text to embed needs
        masks.shut()
        slow = asyncio.ensure_future(answer(model, some_ids(1, 200), GenerationOptions(grammar=SLOW, seed=3)))
        await asyncio.to_thread(masks.reached.wait, 30)
        text = asyncio.ensure_future(model.embed(["d" * 250]))
        await asyncio.to_thread(until, lambda: model.metrics().requests_active == 2)
        await model.prefix_match_async(PROMPT)  # the text has tried to get memory by then
        # then the owner thread sleeps between two checks for the mask
        asked.clear()
        await asyncio.to_thread(until, lambda: STALLED_SECONDS in asked or len(asked) > 1_000)
        rested = STALLED_SECONDS in asked
        masks.gate.set()
        assert rested
        # and both requests finish
        assert (await slow)[-1]
        assert (await text).shape == (1, 16)

    with fake_model(kv_cache_bytes=400 * 262, prefill_chunk_tokens=64) as model:
        asyncio.run(main(model))
