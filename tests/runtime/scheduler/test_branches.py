"""Branches, prompts and beams under faults, cancellations and little memory."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from runtime import (
    BeamOptions,
    BeamStep,
    ContextOverflowError,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    SamplingOptions,
)
from runtime.backends.fake import Behaviour
from runtime.errors import MemoryBudgetError, NonFiniteLogitsError
from tests.fakes import KINDS, Gate, assert_right, engine_of, fake_model, settled, some_ids

PREFIX = some_ids(1, 30)
OPTIONS = GenerationOptions(max_tokens=8, seed=3, ignore_eos=True)
Said = dict[int, list[int]]


async def heard(model: LanguageModel, n: int, options: GenerationOptions, said: Said) -> None:
    async with aclosing(model.continue_many(PREFIX, n, options)) as records:
        async for branch, record in records:
            said.setdefault(branch, []).append(record.token_id)


def alone(model: LanguageModel, ids: list[int], options: GenerationOptions) -> list[int]:
    return [record.token_id for record in model.generate_sync(ids, options)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", [True, False])
def test_more_branches_than_batch_rows_take_turns(kind: str, cache: bool) -> None:
    with fake_model(Behaviour(recurrent=kind == "recurrent"), max_batch_rows=4, cache=cache) as model:
        said: Said = {}
        asyncio.run(heard(model, 11, OPTIONS, said))
        assert sorted(said) == list(range(11))
        computed = settled(model)[0].tokens_computed
        if kind == "attention" or cache:
            assert computed <= len(PREFIX) + 11 * 7
        for branch in (0, 5, 10):
            assert said[branch] == alone(model, PREFIX, replace(OPTIONS, branch=branch))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_branch_ends_independently(kind: str) -> None:
    with fake_model(Behaviour(recurrent=kind == "recurrent")) as model:
        eager = replace(OPTIONS, max_tokens=40, ignore_eos=False, sampling=SamplingOptions(temperature=3.0))
        ended: dict[int, list[str]] = {}

        async def main() -> None:
            async for branch, record in model.continue_many(PREFIX, 16, eager):
                if record.finish_reason is not None:
                    ended.setdefault(branch, []).append(record.finish_reason)

        asyncio.run(main())
        assert sorted(ended) == list(range(16))
        assert {len(reasons) for reasons in ended.values()} == {1}
        assert {reason for [reason] in ended.values()} == {"eos", "length"}


def test_a_failing_branch_does_not_affect_the_others() -> None:
    with fake_model() as model:
        said: Said = {}
        asyncio.run(heard(model, 6, OPTIONS, said))
        at = {branch: ids[3] for branch, ids in said.items()}
        guilty = next(b for b, token in at.items() if sum(token in ids for ids in said.values()) == 1)
        engine_of(model).call(
            lambda: setattr(engine_of(model).backend, "behaviour", Behaviour(nan_on=frozenset({at[guilty]})))
        ).result()
        model.clear_cache()
        again: Said = {}
        with pytest.raises(NonFiniteLogitsError, match="NaN") as failed:
            asyncio.run(heard(model, 6, OPTIONS, again))
        assert failed.value.__notes__[0].startswith(f"branches {guilty} ended by NonFiniteLogitsError: ")
        assert again[guilty] == said[guilty][:4]  # tokens before the failure are kept
        assert {b: ids for b, ids in again.items() if b != guilty} == {b: ids for b, ids in said.items() if b != guilty}


def test_a_failing_prefix_ends_every_branch() -> None:
    with fake_model(Behaviour(raise_on={PREFIX[7]: RuntimeError("device lost")})) as model:
        with pytest.raises(RuntimeError, match="device lost") as failed:
            asyncio.run(heard(model, 3, OPTIONS, {}))
        assert failed.value.__notes__ == ["branches 0, 1, 2 ended by RuntimeError: device lost"]


@pytest.mark.parametrize("kind", KINDS)
def test_closing_stops_all_branches_and_dropping_stops_one(kind: str) -> None:
    endless = replace(OPTIONS, max_tokens=5000)
    with fake_model(Behaviour(recurrent=kind == "recurrent", delay=0.001)) as model:

        async def main() -> None:
            said: Said = {}
            async with aclosing(model.continue_many(PREFIX, 4, endless)) as records:
                records.drop(3)  # before it began
                async for branch, record in records:
                    said.setdefault(branch, []).append(record.token_id)
                    if len(said[branch]) == 5:
                        records.drop(branch)
                    assert len(said[branch]) <= 5
                    if 0 in records.dropped and 1 in records.dropped:
                        break
            assert 3 not in said

            async def dropping() -> list[int]:
                seen = []
                async with aclosing(model.continue_many(PREFIX, 2, endless)) as records:
                    async for branch, _ in records:
                        seen.append(branch)
                        records.drop(branch)
                return seen

            assert sorted(await dropping()) == [0, 1]  # and dropping the last branch ends the stream

        asyncio.run(main())
        assert settled(model)[1].leases == 0
        assert model.metrics().requests_active == 0


def test_requests_cancelled_during_the_prompt_keep_the_computed_kv() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate), prefill_chunk_tokens=8) as model:

        async def main() -> None:
            gate.shut()
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(heard(model, 5, OPTIONS, {}))]
            tasks.append(asyncio.create_task(model.beam_generate(some_ids(2, 30), BeamOptions(3))))
            await asyncio.to_thread(gate.reached.wait)
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0.01)
            gate.open()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(main())
        assert not settled(model)[1].leases
        assert 0 < model.prefix_match(PREFIX).tokens < len(PREFIX)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_search_keeps_the_kv_of_its_beams(kind: str) -> None:
    gate, forwards = Gate(), 0

    def tenth(_: object) -> None:
        nonlocal forwards
        forwards += 1
        if forwards == 10:
            gate.shut()
            gate(None)

    with fake_model(Behaviour(recurrent=kind == "recurrent", before_forward=tenth)) as model:
        paths: list[list[int]] = [[]]

        def watch(step: BeamStep) -> None:
            nonlocal paths
            paths = [[*paths[parent], token] for parent, token in zip(step.parents, step.tokens, strict=True)]

        async def main() -> None:
            task = asyncio.ensure_future(model.beam_generate(PREFIX, BeamOptions(3, 5000, ignore_eos=True), on_step=watch))
            await asyncio.to_thread(gate.reached.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            await asyncio.to_thread(settled, model)  # meanwhile the last steps are reported

        asyncio.run(main())
        assert settled(model)[1].leases == 0
        assert model.metrics().requests_active == 0
        assert len({len(path) for path in paths}) == 1 < len(paths[0])
        for path in paths:
            assert model.prefix_match([*PREFIX, *path]).tokens >= len(PREFIX) + len(path) - 1
            assert_right(model.next_token_logprobs_sync([*PREFIX, *path]), [*PREFIX, *path], kind)


def test_a_failing_search_does_not_affect_other_requests() -> None:
    with fake_model() as model:
        [best, *_] = asyncio.run(model.beam_generate(PREFIX, BeamOptions(2, 6, ignore_eos=True)))
        bad = next(token for token in best.ids[1:4] if token not in PREFIX)
        engine_of(model).call(
            lambda: setattr(engine_of(model).backend, "behaviour", Behaviour(nan_on=frozenset({bad})))
        ).result()
        model.clear_cache()

        async def main() -> None:
            other = some_ids(77, 20)
            failed, well = await asyncio.gather(
                model.beam_generate(PREFIX, BeamOptions(2, 6, ignore_eos=True)),
                model.next_token_logprobs(other),
                return_exceptions=True,
            )
            assert isinstance(failed, NonFiniteLogitsError)
            assert_right(well, other)  # type: ignore[arg-type]  # it is no exception

        asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_little_memory_ends_in_a_memory_error_or_the_right_answer(kind: str) -> None:
    with fake_model(Behaviour(recurrent=kind == "recurrent")) as model:
        expected = asyncio.run(model.beam_generate(PREFIX, BeamOptions(4, 12, ignore_eos=True)))
        branches: Said = {}
        asyncio.run(heard(model, 6, OPTIONS, branches))
        slot = engine_of(model).backend.slot_bytes
        for slots in (33, 60, 90, 150, 400):
            model.clear_cache()
            model.set_kv_budget(slots * slot + 40 * engine_of(model).backend.state_bytes)
            refusals = 0
            try:
                found = asyncio.run(model.beam_generate(PREFIX, BeamOptions(4, 12, ignore_eos=True)))
            except MemoryBudgetError:
                refusals += 1
            else:
                assert [one.ids for one in found] == [one.ids for one in expected]
            said: Said = {}
            try:
                asyncio.run(heard(model, 6, OPTIONS, said))
            except MemoryBudgetError:
                refusals += 1
            assert refusals <= (2 if slots < 150 else 0)
            for branch, ids in said.items():
                assert ids == branches[branch][: len(ids)]
            metrics, report = settled(model)
            assert metrics.kv_peak_bytes <= metrics.kv_budget
            assert report.leases == 0
        model.set_kv_budget(32 * slot)
        with pytest.raises(MemoryBudgetError, match="raise kv_cache_bytes"):
            asyncio.run(heard(model, 900, OPTIONS, {}))  # refused before it is begun


# ---- bad input ---------------------------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (BeamOptions(0), "from 1 to 1,024, not 0"),
        (BeamOptions(1025), "not 1025"),
        (BeamOptions(True), "not True"),
        (BeamOptions(300), "300 beams are wider than the vocabulary of 259"),
        (BeamOptions(length_penalty=NAN), "length_penalty must be a number"),
        (BeamOptions(length_penalty=float("inf")), "not inf"),
        (BeamOptions(length_penalty="1"), "not '1'"),  # type: ignore[arg-type]  # on purpose
        (BeamOptions(early_stopping="sometimes"), "True, False or 'never'"),  # type: ignore[arg-type]  # on purpose
        (BeamOptions(early_stopping=1), "not 1"),  # type: ignore[arg-type]  # on purpose
        (BeamOptions(max_tokens=0), "max_tokens"),
        (BeamOptions(2, num_return=3), "within 1 and the width of 2"),
        (BeamOptions(top_k=-1), "top_k"),
        (BeamOptions(eos_token_ids=(300,)), "token id 300 is outside the vocabulary of 259"),
        (BeamOptions(ignore_eos=0), "ignore_eos"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_bad_beams_are_refused(options: BeamOptions, reason: str) -> None:
    with fake_model() as model:
        with pytest.raises(InvalidRequestError, match=reason):
            asyncio.run(model.beam_generate(PREFIX, options))
        assert settled(model)[0].tokens_computed == 0


@pytest.mark.parametrize("n", [0, -1, 1025, 10**12, True, 2.0, None])
def test_a_bad_number_of_branches_is_refused(n: int) -> None:
    with fake_model() as model:
        with pytest.raises(InvalidRequestError, match="from 1 to 1,024"):
            asyncio.run(heard(model, n, OPTIONS, {}))
        with pytest.raises(InvalidRequestError, match="beyond"):
            asyncio.run(heard(model, 3, replace(OPTIONS, branch=(1 << 64) - 2), {}))
        assert settled(model)[0].tokens_computed == 0


@pytest.mark.parametrize(
    ("prompts", "options", "error", "reason"),
    [
        ([], None, InvalidRequestError, "no prompts"),
        ("hello", None, InvalidRequestError, "not str"),
        ([[1], []], None, InvalidRequestError, "prompt 1: no tokens"),
        ([[1], [2, 999]], None, InvalidRequestError, "prompt 1: token id 999 at position 1"),
        ([[1] * 11, [1] * 5, [1] * 12], None, ContextOverflowError, "prompt 0: 11 tokens do not fit into the context of 10"),
        ([[1], [2]], [OPTIONS], InvalidRequestError, "1 options for 2 prompts"),
        ([[1], [2]], [OPTIONS, replace(OPTIONS, max_tokens=0)], InvalidRequestError, "prompt 1: max_tokens"),
        ([[1]], [3], InvalidRequestError, "one for each prompt"),
    ],
)
def test_bad_prompts_are_refused_with_their_number(
    prompts: list[list[int]], options: list[GenerationOptions] | None, error: type[Exception], reason: str
) -> None:
    with fake_model(context_length=10) as model:

        async def main() -> None:
            async for _ in model.generate_many(prompts, options):
                pass

        with pytest.raises(error, match=reason):
            asyncio.run(main())
        assert settled(model)[0].tokens_computed == 0
