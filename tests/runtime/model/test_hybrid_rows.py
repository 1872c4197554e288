"""Streams of hybrid models with a common beginning: they join, leave and branch anywhere, and each is the same as alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from runtime import GenerationOptions, LanguageModel, SamplingOptions, load
from tests.fakes import engine_of, settled
from tests.runtime.backends.reference import TOLERANCE, expected, random_ids
from tests.runtime.model.trouble import audit
from tests.tiny_models import tiny_path

CASES = [(backend, name) for backend in ("hf", "mlx") for name in ("lfm2", "falcon_h1")]
WINDOWS = pytest.param(("hf", "zaya"), marks=pytest.mark.slow)
STEM = [int(i) for i in random_ids(5, 60)]
STREAMS = 9
TOKENS = 8
GREEDY = GenerationOptions(max_tokens=TOKENS, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)


@pytest.fixture(scope="module", params=[*CASES, WINDOWS], ids="-".join)
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    backend, name = request.param
    with load(tiny_path(name), backend=backend, threads=1) as made:
        yield made


def check(name: str, prompt: list[int], said: list[int]) -> None:
    """Asserts that each token was the likeliest, by one forward of transformers over the whole text."""
    rows = expected(name, [*prompt, *said])[len(prompt) - 1 : -1]
    for row, token in zip(rows, said, strict=True):
        assert row[token] >= row.max() - 2 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_streams_that_start_and_end_at_any_step_are_right(model: LanguageModel, seed: int) -> None:
    # given streams that branch from the stem anywhere, some of which start later, and some are closed in the middle
    chance = random.Random(seed)
    model.clear_cache()
    name = model.info.name.removeprefix("tiny-")
    ended = left = 0

    async def stream(number: int) -> None:
        nonlocal ended, left
        cut = chance.choice([1, 30, 59, 60, 60, 60])
        prompt = [*STEM[:cut], *(int(i) for i in random_ids(100 + number, chance.choice([1, 1, 2, 5])))]
        after, last = chance.randrange(4), chance.choice([2, 5, TOKENS, TOKENS, TOKENS])
        for _ in range(after):
            await asyncio.sleep(0.002)
        said: list[int] = []
        async with contextlib.aclosing(model.generate(prompt, GREEDY)) as records:
            async for record in records:
                said.append(record.token_id)
                if len(said) == last < TOKENS:
                    left += 1
                    break
            else:
                ended += 1
        check(name, prompt, said)

    async def main() -> None:
        await asyncio.gather(*map(stream, range(STREAMS)))

    asyncio.run(main())
    # then every answer is right, and no lease is left behind
    assert ended + left == STREAMS
    assert min(ended, left) > 0
    assert settled(model)[1].leases == 0
    audit(model)


def test_streams_of_one_stem_copy_no_paths_while_they_decode_together(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a record of the paths that are copied for each forward
    backend: Any = cast("Any", engine_of(model).backend)
    copied: list[int] = []
    rows, push = backend.push_rows, backend.push

    def push_rows(pack: Any, bucket: Any) -> Any:
        copied.append(bucket.path.size)
        return rows(pack, bucket)

    def push_one(pack: Any, step: Any) -> Any:
        copied.append(0 if step.path is None else step.path.size)
        return push(pack, step)

    model.clear_cache()
    monkeypatch.setattr(backend, "push_rows", push_rows)
    monkeypatch.setattr(backend, "push", push_one)
    lengths = (2, 4, 7, TOKENS)  # one after another ends, the last continues alone

    async def stream(number: int, n: int) -> None:
        options = GenerationOptions(max_tokens=n, sampling=GREEDY.sampling, ignore_eos=True, top_k=0)
        async for _ in model.generate([*STEM, number], options):
            pass

    async def main() -> None:
        await asyncio.gather(*(stream(number, n) for number, n in enumerate(lengths)))

    # when streams of one stem run until the last of them is alone
    asyncio.run(main())
    assert len(copied) >= TOKENS
    assert sum(copied) == 0
