"""Rows that join or leave others that decode cause no copies of their keys and values, counted in slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.numerics import ranking
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.fakes import engine_of, settled
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

LONG = GenerationOptions(max_tokens=90, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)


class Copies:
    """Slots that each member of a backend has copied; for `resize` those that it had to move."""

    def __init__(self, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slots = {"load": 0, "retain": 0, "take": 0, "resize": 0}
        self._backend, self._patch, self._inside = backend, monkeypatch, 0
        self._watch("load", lambda pack, payload, parent, skip=0: 1)
        self._watch("retain", lambda pack, slots, places: len(slots))
        self._watch("take", lambda pack, slots: len(slots))
        self._watch("take_many", lambda pack, chains: sum(map(len, chains)), "take")
        self._watch("resize", lambda pack, capacity: backend.size(pack))

    def _watch(self, member: str, weigh: Callable[..., int], name: str | None = None) -> None:
        real = getattr(self._backend, member)

        def act(*given: Any) -> Any:
            self.slots[name or member] += weigh(*given) * (not self._inside)  # one may call another
            self._inside += 1
            try:
                return real(*given)
            finally:
                self._inside -= 1

        self._patch.setattr(self._backend, member, act)


async def crowd(model: LanguageModel) -> int:
    """Runs eight streams, one of which ends early, and two more that join meanwhile; returns the number of tokens."""
    said: dict[int, int] = {}
    all_on = asyncio.Event()

    async def stream(number: int, most: int) -> None:
        prompt = [int(token) % 250 for token in random_ids(number, 40 if number < 8 else 5)]
        said[number] = 0
        async for _ in model.generate(prompt, LONG):
            said[number] += 1
            if len(said) == 8 and min(said.values()) == 5:
                all_on.set()
            if said[number] == most:
                return

    running = [asyncio.ensure_future(stream(number, 20 if number == 2 else 90)) for number in range(8)]
    await all_on.wait()
    running += [asyncio.ensure_future(stream(number, 30)) for number in (8, 9)]
    await asyncio.gather(*running)
    return sum(said.values())


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("fake", "attention"),
        ("fake", "overlapping"),
        pytest.param("hf", "llama", marks=pytest.mark.slow),
        pytest.param("mlx", "llama", marks=pytest.mark.slow),
    ],
)
def test_rows_join_and_leave_without_a_copy_of_the_others(backend: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = tiny_path(name) if backend != "fake" else (Behaviour(overlaps=name == "overlapping"), None)
    with load(source, backend=backend) as model:
        copies = engine_of(model).call(lambda: Copies(engine_of(model).backend, monkeypatch)).result()
        # when rows join and leave while others decode
        asyncio.run(crowd(model))
        report = settled(model)[1]
        # then nothing was copied for that, into the trie or out of it; only buffers that grow are copied
        held = sum(workspace.held for workspace in engine_of(model).scheduler.cache.workspaces.open)
        assert copies.slots["load"] == copies.slots["retain"] == copies.slots["take"] == 0
        assert copies.slots["resize"] <= 4 * held
        assert report.tokens <= held <= report.tokens + 10  # slots begun when a row left
        monkeypatch.undo()


def test_a_greedy_token_and_its_alternatives_take_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a counter of the searches through rows
    searched: list[int] = []
    likeliest = ranking.likeliest

    def search(row: Any, k: int, peaks: Any = None) -> Any:
        searched.append(k)
        return likeliest(row, k, peaks)

    monkeypatch.setattr(ranking, "likeliest", search)
    options = GenerationOptions(max_tokens=6, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=3)

    async def said(model: LanguageModel) -> list[int]:
        return [record.token_id async for record in model.generate([1, 2, 3], options)]

    # when six tokens are drawn, each with three alternatives
    with load((Behaviour(), None), "fake") as model:
        assert len(asyncio.run(said(model))) == 6
    # then each took one search
    assert searched == [3] * 6
