"""Continuations, batches of prompts, and beams over the pipe."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from typing import Any

import pytest

from runtime import (
    BeamOptions,
    BeamStep,
    Branches,
    EngineDiedError,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    PromptProgress,
    SamplingOptions,
    TokenRun,
    load,
    spawn,
)
from tests.runtime.process.conftest import cancelled, eventually, has_made, spawn_fake, state_of
from tests.runtime.process.fake_answers import run_of
from tests.runtime.process.fake_model import ENDLESS
from tests.tiny_models import tiny_path

IDS = [104, 101, 108, 108, 111]
OPTIONS = GenerationOptions(max_tokens=9, seed=7, sampling=SamplingOptions(temperature=1.5))


async def _all(records: Branches[Any]) -> dict[int, list[Any]]:
    said: dict[int, list[Any]] = {}
    async with aclosing(records):
        async for branch, record in records:
            said.setdefault(branch, []).append(record)
    return said


async def _everything(model: LanguageModel) -> list[Any]:
    steps: list[BeamStep] = []
    options = [OPTIONS, GenerationOptions(max_tokens=2, seed=1), None]
    return [
        await _all(model.continue_many(IDS, 4, OPTIONS)),
        {
            branch: TokenRun.concat(runs).to_columns()
            for branch, runs in (await _all(model.continue_many_runs(IDS, 3, OPTIONS))).items()
        },
        await _all(model.generate_many([IDS, "text \ud800"], OPTIONS)),
        {i: records for i, records in (await _all(model.generate_many([IDS, IDS, "t"], options))).items() if i < 2},
        await model.beam_generate(IDS, BeamOptions(3, 5, early_stopping="never", eos_token_ids=(4, 5)), on_step=steps.append),
        steps,
    ]


@pytest.mark.slow
def test_a_spawned_model_answers_like_one_in_this_process() -> None:
    async def scenario() -> None:
        with load("anything", "mock") as local:
            async with await spawn("anything", "mock") as spawned:
                for here, there in zip(await _everything(local), await _everything(spawned), strict=True):
                    assert repr(here) == repr(there)
                    assert len(here) > 0

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_spawned_real_model_of_any_architecture_answers_like_one_in_this_process(backend: str, name: str) -> None:
    prompt = [5, 6, 7, 8] * 9  # past every window
    options = GenerationOptions(max_tokens=6, seed=7, ignore_eos=True, resolve=False)

    async def answers(model: LanguageModel) -> list[Any]:
        return [
            await _all(model.continue_many(prompt, 3, options)),
            await _all(model.generate_many([prompt, [9], "a text"], options)),
            [(one.ids, one.finish_reason) for one in await model.beam_generate(prompt, BeamOptions(3, 6, length_penalty=0.0))],
        ]

    async def scenario() -> None:
        with load(tiny_path(name), backend, threads=1) as local:
            async with await spawn(tiny_path(name), backend, threads=1) as spawned:
                here, there = await answers(local), await answers(spawned)
        for said, heard in zip(here[:2], there[:2], strict=True):
            assert {i: [r.token_id for r in records] for i, records in said.items()} == {
                i: [r.token_id for r in records] for i, records in heard.items()
            }
        assert here[2] == there[2]

    asyncio.run(scenario())


@pytest.mark.slow
def test_invalid_requests_raise_the_same_errors_in_process_and_over_the_pipe() -> None:
    async def errors(model: LanguageModel) -> list[BaseException]:
        asked = (
            _all(model.continue_many(IDS, 0)),
            _all(model.continue_many([], 2)),
            _all(model.generate_many([IDS, [10**6]])),
            _all(model.generate_many([])),
            _all(model.generate_many([[1], [2] * 40_000])),
            _all(model.generate_many([IDS], [OPTIONS, OPTIONS])),
            model.beam_generate(IDS, BeamOptions(0)),
            model.beam_generate(IDS, BeamOptions(length_penalty=float("nan"))),
            model.beam_generate(IDS, BeamOptions(1000)),
        )
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [error for error in found if isinstance(error, BaseException)]

    async def scenario() -> None:
        with load("anything", "mock") as local:
            async with await spawn("anything", "mock") as spawned:
                here, there = await errors(local), await errors(spawned)
                assert len(here) == 9
                assert [repr(error) for error in here] == [repr(error) for error in there]
                assert all(isinstance(error, InvalidRequestError) for error in here)

    asyncio.run(scenario())


def test_records_carry_the_number_of_their_branch(client: LanguageModel) -> None:
    heard: list[PromptProgress] = []

    async def scenario() -> None:
        said = await _all(client.continue_many([0, 1], 3, GenerationOptions(max_tokens=6), on_progress=heard.append))
        assert {b: [r.token_id for r in records] for b, records in said.items()} == {b: list(range(b, b + 6)) for b in range(3)}
        assert {records[-1].finish_reason for records in said.values()} == {"length"}

    asyncio.run(scenario())
    assert heard == [PromptProgress(2, 2, 0, 2)]


def test_a_slow_reader_gets_the_tokens_of_each_branch_in_one_run(client: LanguageModel) -> None:
    async def scenario() -> None:
        before = int((await state_of(client))["generated"])
        async with aclosing(client.continue_many_runs([0], 2, GenerationOptions(max_tokens=13))) as runs:
            await anext(runs)
            await eventually(lambda: has_made(client, before + 2 * 13))
            rest = [item async for item in runs]
        assert max(len(run) for _, run in rest) > 6
        assert len(rest) <= 4

    asyncio.run(scenario())


def test_a_dropped_branch_yields_no_more_records(client: LanguageModel) -> None:
    async def scenario() -> None:
        before = await cancelled(client)
        async with aclosing(client.generate_many([[ENDLESS], [ENDLESS], [ENDLESS], [0]])) as records:
            records.drop(1)
            seen: dict[int, int] = {}
            async for branch, _ in records:
                seen[branch] = seen.get(branch, 0) + 1
                if branch == 0 and seen[0] == 3:
                    records.drop(0)
                if branch == 2 and seen[2] == 10:
                    records.drop(2)
        # then the stream ended by itself, without a cancellation
        assert seen == {0: 3, 2: 10, 3: 4}
        assert await cancelled(client) == before

    asyncio.run(scenario())


def test_closing_the_stream_stops_the_generation(client: LanguageModel) -> None:
    async def scenario() -> None:
        before = await cancelled(client)
        async with aclosing(client.continue_many([ENDLESS], 3)) as records:
            await anext(records)

        async def stopped() -> bool:
            return await cancelled(client) == before + 1

        await eventually(stopped)

    asyncio.run(scenario())


def test_records_before_an_error_are_kept_and_the_error_keeps_its_note(client: LanguageModel) -> None:
    async def scenario() -> None:
        said: list[int] = []

        async def read() -> None:
            async for branch, _ in client.generate_many([[0], [8]]):
                said.append(branch)  # the records before an error are asserted below

        with pytest.raises(InvalidRequestError, match="eight fails") as failed:
            await read()
        assert failed.value.__notes__ == ["prompts 1 ended by InvalidRequestError: eight fails in the end"]
        assert sorted(said) == [0] * 4 + [1] * 4
        with pytest.raises(InvalidRequestError, match="prompt 1: nine is refused"):
            await _all(client.generate_many([[0], [9]]))

    asyncio.run(scenario())


def test_records_before_a_crash_of_the_engine_are_kept() -> None:
    async def scenario() -> None:
        async with await spawn_fake() as client:
            said: list[int] = []

            async def read() -> None:
                async for branch, _ in client.continue_many([ENDLESS], 2):
                    said.append(branch)
                    if len(said) == 6:
                        os.kill(client.pid, signal.SIGKILL)

            with pytest.raises(EngineDiedError):
                await read()
            assert set(said) == {0, 1}  # records of both had arrived, several at a time where the pipe was slow
            assert len(said) >= 6

    asyncio.run(scenario())


def test_hypotheses_cross_the_pipe_complete_and_after_their_steps(client: LanguageModel) -> None:
    steps: list[BeamStep] = []

    async def scenario() -> None:
        found = await client.beam_generate([1, 2], BeamOptions(3), on_step=steps.append)
        assert len(steps) == 3
        assert steps[0] == BeamStep(1, (0, 0), (1, 2), (-0.5, -1.5), 0)
        assert [(one.ids, one.logprob, one.score, one.finish_reason) for one in found] == [
            ([i, 1], -1.5 * i, -0.75 * i, "eos") for i in range(3)
        ]
        assert found[2].text == run_of([2]).text  # without the text of the eos
        await client.beam_generate([1, 2], BeamOptions(3))
        assert len(steps) == 3  # a search without on_step reports no steps

    asyncio.run(scenario())
