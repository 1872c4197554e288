"""Long prompts with a common beginning, which is computed and held once, in one pack."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from runtime import GenerationOptions, LanguageModel, PromptProgress, SamplingOptions
from runtime.backends.fake import Behaviour
from runtime.scheduler.kv.kv_budget import LEAST_CROWD
from tests.fakes import KINDS, Gate, assert_right, engine_of, fake_model, settled, some_ids

STEM = some_ids(1, LEAST_CROWD + 40)
N = 8
TOKENS = 4
GREEDY = GenerationOptions(max_tokens=TOKENS, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)


@pytest.fixture(params=KINDS[:2])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(kind: str) -> Iterator[LanguageModel]:
    with fake_model(Behaviour(recurrent=kind == "recurrent"), prefill_chunk_tokens=256) as made:
        yield made


def held(model: LanguageModel) -> list[int]:
    """Slots in each of the packs."""
    return engine_of(model).call(lambda: [w.held for w in engine_of(model).scheduler.cache.workspaces.open]).result()


async def spoken(model: LanguageModel, ids: list[int]) -> list[int]:
    return [record.token_id async for record in model.generate(ids, GREEDY)]


def test_long_prompts_that_arrive_together_compute_their_stem_once(model: LanguageModel, kind: str) -> None:
    async def main() -> None:
        said, rows = await asyncio.gather(
            asyncio.gather(*(spoken(model, [*STEM, token]) for token in range(N))),
            asyncio.gather(*(model.next_token_logprobs([*STEM, token]) for token in range(N, 2 * N))),
        )
        for token, row in enumerate(rows, N):
            assert_right(row, [*STEM, token], kind)
        assert len({tuple(ids) for ids in said}) > 1
        with fake_model(Behaviour(recurrent=kind == "recurrent")) as other:
            assert await spoken(other, [*STEM, 3]) == said[3]

    asyncio.run(main())
    pushed = len(STEM) + 2 * N + N * (TOKENS - 1)
    assert settled(model)[0].tokens_computed == pushed
    assert held(model) == [pushed]


def test_a_prompt_that_arrives_during_the_prefill_of_another_shares_its_stem(model: LanguageModel, kind: str) -> None:
    # given a prompt in its second chunk
    gate, arrived = Gate(), threading.Event()
    forwards = 0

    def second(tokens: object) -> None:
        nonlocal forwards
        forwards += 1
        if forwards == 2:
            gate.shut()
            arrived.set()
        gate(tokens)

    behaviour = Behaviour(recurrent=kind == "recurrent", before_forward=second)
    engine_of(model).call(lambda: setattr(engine_of(model).backend, "behaviour", behaviour)).result()

    async def main() -> None:
        first = asyncio.ensure_future(spoken(model, [*STEM, 5]))
        assert await asyncio.to_thread(arrived.wait, 30)
        # when another arrives
        late = asyncio.ensure_future(model.next_token_logprobs([*STEM, 7]))
        for _ in range(5):
            await asyncio.sleep(0)
        gate.open()
        assert_right(await late, [*STEM, 7], kind)
        await first

    # then both share a pack, and their whole stem
    asyncio.run(main())
    assert settled(model)[0].tokens_computed == len(STEM) + 2 + TOKENS - 1
    assert len(held(model)) == 1


def test_cancelling_the_first_prompt_half_way_does_not_affect_the_others(model: LanguageModel, kind: str) -> None:
    async def main() -> None:
        first = asyncio.ensure_future(_cancelled_half_way(model))
        rows = await asyncio.gather(*(model.next_token_logprobs([*STEM, token]) for token in range(N)))
        await first
        for token, row in enumerate(rows):
            assert_right(row, [*STEM, token], kind)

    asyncio.run(main())
    own = settled(model)[0].tokens_computed - len(STEM)
    assert N <= own <= N + TOKENS  # the cancellation may arrive when the prompt is nearly done


async def _cancelled_half_way(model: LanguageModel) -> None:
    task: asyncio.Task[None]

    def heard(progress: PromptProgress) -> None:
        if progress.done >= len(STEM) // 2:
            task.cancel()

    async def ask() -> None:
        async for _ in model.generate([*STEM, 200], GREEDY, on_progress=heard):
            pass

    task = asyncio.ensure_future(ask())
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_paths_are_loaded_from_the_trie_into_one_pack(model: LanguageModel, kind: str) -> None:
    # given paths in the trie, and no pack any more where the trie holds copies
    paths = [[*STEM, token] for token in range(N)]

    async def main() -> None:
        await asyncio.gather(*(spoken(model, path) for path in paths))
        engine_of(model).call(engine_of(model).scheduler.cache.workspaces.drop_idle).result()
        answers = 0 if kind == "recurrent" else 3 * N  # the pack stays where the trie refers to it
        assert held(model) == ([len(STEM) + N + answers] if answers else [])
        computed = settled(model)[0].tokens_computed
        # when each of them is continued by a token
        rows = await asyncio.gather(*(model.next_token_logprobs([*path, 9]) for path in paths))
        for path, row in zip(paths, rows, strict=True):
            assert_right(row, [*path, 9], kind)
        assert settled(model)[0].tokens_computed == computed + N

        # then their stem is held once: there is one pack, with no more than the paths
        assert held(model) == [len(STEM) + 2 * N + answers]

    asyncio.run(main())


def test_a_missing_state_is_loaded_again_without_copying_the_path(model: LanguageModel, kind: str) -> None:
    # given a path whose keys are in a pack, and its state in the trie alone
    path = [*STEM, 1]

    async def main() -> None:
        await spoken(model, path)
        before = sum(held(model))
        (workspace,) = engine_of(model).scheduler.cache.workspaces.open
        engine_of(model).call(workspace.pack.states.clear).result()
        # when the path is continued
        assert_right(await model.next_token_logprobs([*path, 250]), [*path, 250], kind)
        # then no more is copied than the token that carries the state
        assert sum(held(model)) - before == (2 if kind == "recurrent" else 1)

    asyncio.run(main())
