"""`progress` of long calls: a bar, or a callable that gets the number done; an interrupt keeps completed work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runtime import BeamOptions, GenerationOptions, LanguageModel, LoadProgress, OptionError, PromptProgress, load, run_sync
from tests.fakes import fake_model, settled, some_ids
from tests.tiny_models import tiny_path

IDS = some_ids(1, 300)
OPTIONS = GenerationOptions(max_tokens=6, seed=1, ignore_eos=True)
Call = Callable[..., Any]


async def collected(stream: Any) -> list[str]:
    return sorted([repr(item) async for item in stream])  # answers of a batch arrive in any order


# name -> (the call, its total, its unit)
CALLS: dict[str, tuple[Call, int, str]] = {
    "score": (lambda model, **named: model.score(IDS, **named), 300, "token"),
    "generate": (lambda model, **named: collected(model.generate(IDS, OPTIONS, **named)), 6, "token"),
    "named options": (lambda model, **named: collected(model.generate(IDS, max_tokens=6, seed=1, **named)), 6, "token"),
    "continue_many": (lambda model, **named: collected(model.continue_many(IDS, 3, OPTIONS, **named)), 3, "answer"),
    "generate_many": (lambda model, **named: collected(model.generate_many([IDS, "text"], OPTIONS, **named)), 2, "answer"),
    "beam_generate": (lambda model, **named: model.beam_generate(IDS, BeamOptions(2, 5, ignore_eos=True), **named), 5, "step"),
    "embed": (lambda model, **named: model.embed(["one", "three"], **named), 8, "token"),
    "complete": (lambda model, **named: model.complete("text", max_tokens=6, seed=1, ignore_eos=True, **named), 6, "token"),
    "lens": (lambda model, **named: model.lens(IDS, range(40), **named), 40, "position"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_callable_gets_the_number_done_and_the_total(name: str) -> None:
    call, total, _ = CALLS[name]
    counted: list[tuple[int, int | None]] = []
    with fake_model(prefill_chunk_tokens=32) as model:
        plain = asyncio.run(call(model))
        told = asyncio.run(call(model, progress=lambda *heard: counted.append(heard)))
    assert counted[-1] == (total, total)
    assert [done for done, _ in counted] == sorted(done for done, _ in counted)
    assert repr(told) == repr(plain)  # the same as without


@pytest.mark.parametrize("name", CALLS)
def test_progress_true_draws_a_bar_that_is_full_at_the_end(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    call, total, unit = CALLS[name]
    with fake_model() as model:
        asyncio.run(call(model, progress=True))
        drawn = capfd.readouterr().err
        assert f"{total}/{total}" in drawn
        assert f"{unit}/s" in drawn or f"s/{unit}" in drawn
        with pytest.raises(OptionError, match="progress"):
            asyncio.run(call(model, progress=3))
        asyncio.run(call(model))
    assert capfd.readouterr().err == ""


async def in_a_session(model: LanguageModel, **named: Any) -> list[str]:
    with model.open_session() as session:
        await session.ensure_prefix(IDS, **named)
        await session.prefill_suffix(IDS[:70], **named)
        await session.prefill(IDS[:40], **named)
        text = await collected(session.decode(OPTIONS, **named))
        await session.truncate(20, **named)
    return text


def test_a_session_reports_progress_too(capfd: pytest.CaptureFixture[str]) -> None:
    counted: list[tuple[int, int | None]] = []
    with fake_model(prefill_chunk_tokens=32) as model:
        plain = asyncio.run(in_a_session(model))
        assert asyncio.run(in_a_session(model, progress=lambda *heard: counted.append(heard))) == plain
        assert counted[-1] == (6, 6)  # the answer's tokens
        assert {(300, 300), (370, 370), (410, 410)} <= {*counted}
        capfd.readouterr()
        asyncio.run(in_a_session(model, progress=True))
        assert "410/410" in capfd.readouterr().err
        with pytest.raises(OptionError, match="progress"):
            asyncio.run(in_a_session(model, progress=3))


def test_a_load_draws_a_bar(capfd: pytest.CaptureFixture[str]) -> None:
    folder = tiny_path("llama")
    counted: list[tuple[int, int | None]] = []
    heard: list[LoadProgress] = []
    load(folder, "hf", progress=lambda *one: counted.append(one), on_progress=heard.append).close()
    assert counted[-1][0] == counted[-1][1] == heard[-2].total > 0
    assert heard[-1].stage == "checking"
    capfd.readouterr()
    load(folder, "hf", progress=True).close()
    assert f"{heard[-2].total}/{heard[-2].total}" in capfd.readouterr().err
    with pytest.raises(OptionError, match="progress"):
        load(folder, "hf", progress="bar")  # type: ignore[arg-type]  # what is refused


def test_progress_and_on_progress_get_the_same_numbers() -> None:
    counted: list[tuple[int, int | None]] = []
    heard: list[PromptProgress] = []
    with fake_model(prefill_chunk_tokens=32) as model:
        model.score_sync(IDS, progress=lambda *one: counted.append(one), on_progress=heard.append)
    assert counted == [(one.done, one.total) for one in heard]
    assert len(counted) > 5


def wrong(_: PromptProgress) -> None:
    raise ValueError("of the listener")


LISTENED: dict[str, Call] = {
    "score": lambda model: model.score(IDS, on_progress=wrong),
    "generate": lambda model: collected(model.generate(IDS, OPTIONS, on_progress=wrong)),
    "continue_many": lambda model: collected(model.continue_many(IDS, 3, OPTIONS, on_progress=wrong)),
}


@pytest.mark.parametrize("name", LISTENED)
def test_an_error_of_a_progress_callback_is_raised_in_its_own_call_only(name: str) -> None:
    heard: list[PromptProgress] = []

    async def both(model: LanguageModel) -> tuple[Any, Any]:
        others = model.score(IDS[:200], on_progress=heard.append)
        mine, other = await asyncio.gather(LISTENED[name](model), others, return_exceptions=True)
        return mine, other

    with fake_model(prefill_chunk_tokens=32) as model:
        mine, other = asyncio.run(both(model))
        assert isinstance(mine, ValueError)
        assert len(other) == 200
        assert heard[-1].done == 200


def interrupted(done: int, _total: int | None) -> None:
    if done >= 100:
        raise KeyboardInterrupt


def test_an_interrupted_score_keeps_the_computed_tokens() -> None:
    with fake_model(prefill_chunk_tokens=32) as model:
        with pytest.raises(KeyboardInterrupt):
            model.score_sync(IDS, progress=interrupted)
        computed = settled(model)[0].tokens_computed
        assert 100 <= computed < len(IDS)
        run = run_sync(model.score_run(IDS))
        assert settled(model)[0].tokens_computed <= len(IDS) + 1  # no token twice except the last one
    with fake_model() as fresh:
        np.testing.assert_allclose(run.logprob, run_sync(fresh.score_run(IDS)).logprob, atol=1e-4)


def test_a_score_in_windows_counts_the_tokens_of_all_windows() -> None:
    counted: list[tuple[int, int | None]] = []
    with load("x", backend="fake", context_length=64) as model:
        model.score_sync(some_ids(2, 150), stride=32, progress=lambda *heard: counted.append(heard))
    assert counted[-1][0] == counted[-1][1]
    assert len({total for _, total in counted}) == 1


@pytest.mark.parametrize("many", [True, False])
def test_records_before_an_interrupt_are_kept(many: bool) -> None:
    def stop(done: int, _total: int | None) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    async def read(model: LanguageModel, got: list[Any], progress: Any = False) -> None:
        prompts = [IDS, IDS[:50], IDS[:20]]
        each = [GenerationOptions(max_tokens=n, seed=1, ignore_eos=True) for n in (200, 2, 4)]
        stream: Any = model.generate_many(prompts, each, progress=progress)
        if not many:
            stream = model.generate(IDS, each[0], progress=progress)
        async for item in stream:
            got.append(item)  # noqa: PERF401  # a comprehension would lose the records

    got: list[Any] = []
    with fake_model() as model:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(read(model, got, stop))
        assert settled(model)[1].leases == 0
        whole: list[Any] = []
        asyncio.run(read(model, whole))
    assert 2 <= len(got) < len(whole)
    assert all(item in whole for item in got)
