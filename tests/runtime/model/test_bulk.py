"""Scores and likeliest tokens of many texts: the same as alone, in order or not, in bounded memory, in spite of faults."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, redirect_stderr
from itertools import islice
from typing import Any

import numpy as np
import pytest

from runtime import (
    InvalidRequestError,
    LanguageModel,
    MemoryBudgetError,
    NonFiniteLogitsError,
    OptionError,
    RemoteError,
    RuntimeFault,
    TokenRun,
    load,
    run_sync,
    spawn,
)
from runtime.api.bulk import AUTO_TEXTS
from runtime.backends.fake import Behaviour
from tests.fakes import fake_model, some_ids
from tests.tiny_models import tiny_path

TEXTS = ["one", "two and two", "", "three <b>", "x " * 200_000, "\ud800", "one"]
BAD = [2, 4]  # nothing to score; too long


@pytest.fixture(params=["fake", "spawned", "hf", "mlx"])
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    match request.param:
        case "spawned":
            made = run_sync(spawn("x", backend="fake"))
        case "fake":
            made = load("x", backend="fake")
        case backend:
            made = load(tiny_path("llama"), backend=backend)
    with made:
        yield made


def assert_alone(model: LanguageModel, ids: Sequence[int], run: TokenRun, top_k: int) -> None:
    alone = model.score_sync(ids, top_k)
    assert run.ids.tolist() == list(ids)
    assert [record.logprob for record in run][1:] == pytest.approx([record.logprob for record in alone][1:], abs=1e-4)
    assert run.top_k == top_k


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ordered", [True, False])
def test_each_text_is_answered_as_alone_and_a_fault_does_not_affect_the_others(model: LanguageModel, ordered: bool) -> None:
    faults: dict[int, RuntimeFault] = {}
    counted: list[tuple[int, int | None]] = []
    found = dict(
        model.score_many_sync(
            TEXTS, 3, ordered=ordered, progress=lambda *done: counted.append(done), on_fault=faults.__setitem__
        )
    )
    assert sorted(faults) == BAD
    assert sorted(found) == [0, 1, 3, 5, 6]
    if ordered:
        assert list(found) == sorted(found)
    assert counted == [(n, len(TEXTS)) for n in range(1, len(TEXTS) + 1)]
    for number, run in found.items():
        assert_alone(model, model.tokenize(TEXTS[number]), run, 3)
    # and so it is for the likeliest tokens after each text
    faults.clear()
    likeliest = dict(model.top_many_sync(TEXTS, 3, ordered=ordered, on_fault=faults.__setitem__))
    assert (sorted(faults), sorted(likeliest)) == (BAD, [0, 1, 3, 5, 6])
    if ordered:
        assert list(likeliest) == sorted(likeliest)
    for number, top in likeliest.items():
        alone = model.top_logprobs_sync(model.tokenize(TEXTS[number]), 3)
        np.testing.assert_allclose(top.logprobs, alone.logprobs, atol=1e-4)


@pytest.mark.slow
def test_the_likeliest_tokens_of_each_text_are_the_same_as_alone(model: LanguageModel) -> None:
    paths = [model.tokenize("one"), model.tokenize("two and two")]
    found = dict(model.top_many_sync([paths[0], "two and two"], 4, chosen=[5, 6]))
    for number, ids in enumerate(paths):
        row = model.next_token_logprobs_sync(ids)
        np.testing.assert_allclose(found[number].logprobs, np.sort(row)[::-1][:4], atol=1e-4)
        assert found[number].chosen == pytest.approx({5: row[5], 6: row[6]}, abs=1e-4)
        assert found[number].tail_mass == pytest.approx(1 - np.exp(np.sort(row)[-4:].astype(float)).sum(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("many", ["score_many_sync", "top_many_sync"])
def test_without_on_fault_a_fault_is_raised_with_the_number_of_its_text_after_earlier_results(many: str) -> None:
    with load("x", backend="fake") as model:
        stream = getattr(model, many)(TEXTS)
        assert [number for number, _ in islice(stream, 2)] == [0, 1]
        with pytest.raises(InvalidRequestError) as caught:
            next(stream)
        assert caught.value.__notes__ == ["text 2"]


@pytest.mark.parametrize("fault", [RemoteError("lost", "lost"), MemoryBudgetError("full"), OptionError("no", "top_k")])
def test_on_fault_gets_only_the_faults_of_texts_and_other_faults_are_raised(
    fault: RuntimeFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, faults = LanguageModel.score_run, dict[int, RuntimeFault]()

    async def failing(self: LanguageModel, ids: Sequence[int], *arguments: Any, **named: Any) -> TokenRun:
        if 9 in ids:
            raise fault
        return await score(self, ids, *arguments, **named)

    monkeypatch.setattr(LanguageModel, "score_run", failing)
    with fake_model(Behaviour(nan_on=frozenset({7}))) as model:
        stream = model.score_many_sync([[1, 2], [3, 7, 4], [5, 6], [8, 9]], on_fault=faults.__setitem__)
        assert [number for number, _ in islice(stream, 2)] == [0, 2]
        with pytest.raises(type(fault)) as caught:
            next(stream)
    assert caught.value.__notes__[-1] == "text 3"
    assert [(number, type(found)) for number, found in faults.items()] == [(1, NonFiniteLogitsError)]


class Ids(list[int]):
    """Token ids that support weak references."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("many", ["score_many", "top_many"])
def test_inputs_are_read_as_results_are_taken_and_neither_is_held(many: str, ordered: bool) -> None:
    # given a hundred thousand texts from a generator
    read = 0
    texts: list[weakref.ref[Any]] = []

    async def endless() -> AsyncIterator[Ids]:
        nonlocal read
        for read in range(1, 100_001):  # counts
            ids = Ids([read % 250, read // 250, 3])
            texts.append(weakref.ref(ids))
            yield ids

    async def main(model: LanguageModel) -> None:
        # when 600 are taken
        taken = 0
        columns: list[weakref.ref[Any]] = []
        async with aclosing(getattr(model, many)(endless(), 1, ordered=ordered)) as stream:
            async for _, found in stream:
                taken += 1
                columns.append(weakref.ref(found.logprob if many == "score_many" else found.logprobs))
                del found
                if taken == 600:
                    break
            # then few more were read, and only texts and results in flight are alive
            assert read <= 600 + 2 * AUTO_TEXTS
            gc.collect()
            assert sum(each() is not None for each in texts) <= 2 * AUTO_TEXTS
            assert sum(each() is not None for each in columns) <= 2
        # and no work continues
        assert len(asyncio.all_tasks()) == 1

    with load("x", backend="fake") as model:
        asyncio.run(main(model))
        model.next_token_logprobs_sync([1])
        assert model.metrics().requests_active == 0


MANY_TEXTS = """
import json
from runtime import load

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

with load("x", backend="fake", kv_cache_bytes=1 << 20) as model:
    sizes = [rss() for number, _ in model.score_many_sync((f"text {i}" for i in range(100_000)), 3) if number % 1000 == 999]
print(json.dumps(sizes))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_a_hundred_thousand_texts_take_no_more_memory_than_ten_thousand(record_property: Callable[[str, int], None]) -> None:
    done = subprocess.run([sys.executable, "-c", MANY_TEXTS], capture_output=True, text=True, check=True)
    sizes = json.loads(done.stdout)
    grown = max(sizes[10:]) - sizes[9]
    record_property("bytes at 10,000 texts", sizes[9])
    record_property("bytes more up to 100,000", grown)
    assert grown < 16 << 20  # if the results were held, they alone would take more than 100 MiB


def test_shared_beginnings_are_computed_once() -> None:
    prefix = some_ids(1, 60)
    with fake_model() as model:
        texts = [[*prefix, *some_ids(seed, 4)] for seed in range(2, 202)]
        runs = dict(model.score_many_sync(texts, 0))
        assert len(runs) == 200
        assert model.metrics().tokens_computed <= 60 + 200 * 4 + 4


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_beginning_that_takes_several_forwards_is_computed_once(backend: str) -> None:
    # given more texts than go into one forward, some of which arrive while the beginning is computed
    prefix = some_ids(1, 200)
    texts = [[*prefix, *some_ids(seed, 4)] for seed in range(2, 72)]
    with load(tiny_path("llama"), backend, prefill_chunk_tokens=64) as model:
        runs = dict(model.score_many_sync(texts, 2))
        # then a token is computed again only for the row after it, one in a forward
        assert model.metrics().tokens_computed <= 200 + 70 * 4 + 16
        model.clear_cache()
        for at in (0, 40, 69):
            assert_alone(model, texts[at], runs[at], 2)


def test_texts_in_skip_are_skipped() -> None:
    with fake_model() as model:
        texts = [some_ids(seed, 10) for seed in range(6)]
        assert [number for number, _ in model.score_many_sync(texts, skip=range(4))] == [4, 5]
        assert model.metrics().tokens_computed == 20
        # and results taken before a stream was closed can be skipped the next time
        stream = model.top_many_sync(texts, 2, ordered=False, batch=2)
        taken = dict(islice(stream, 3))
        stream.close()
        rest = dict(model.top_many_sync(texts, 2, skip=taken.keys()))
        assert sorted([*taken, *rest]) == list(range(6))


def test_progress_true_draws_a_bar() -> None:
    with load("x", backend="fake") as model, redirect_stderr(io.StringIO()) as err:
        list(model.score_many_sync(["a", "b"], progress=True))
    assert "2/2" in err.getvalue()


def test_closing_the_generator_stops_the_work() -> None:
    with fake_model(Behaviour(delay=0.01)) as model:
        stream = model.score_many_sync([some_ids(seed, 30) for seed in range(300)])
        next(stream)
        stream.close()
        model.next_token_logprobs_sync([1])
        assert model.metrics().requests_active == 0
        assert model.metrics().tokens_computed < 300 * 30


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"texts": "a text"}, "texts is an iterable"),
        ({"texts": 3}, "texts is an iterable"),
        ({"texts": [], "batch": 0}, "batch"),
        ({"texts": [], "batch": "all"}, "batch"),
        ({"texts": [], "progress": 3}, "progress"),
        ({"texts": [b"bytes"]}, "token ids"),
        ({"texts": [None]}, "token ids|flat"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, Any], why: str) -> None:
    with load("x", backend="fake") as model, pytest.raises(InvalidRequestError, match=why):
        list(model.score_many_sync(**given))


@pytest.mark.parametrize(
    ("many", "given"),
    [
        ("score_many_sync", {"priority": "soon"}),
        ("top_many_sync", {"priority": "soon"}),
        ("top_many_sync", {"chosen": [-1]}),
        ("top_many_sync", {"chosen": ["a"]}),
    ],
)
def test_invalid_arguments_of_the_call_are_not_reported_as_faults_of_its_texts(many: str, given: dict[str, Any]) -> None:
    faults = dict[int, RuntimeFault]()
    with load("x", backend="fake") as model, pytest.raises(InvalidRequestError):
        list(getattr(model, many)(["one", "two"], on_fault=faults.__setitem__, **given))
    assert not faults
