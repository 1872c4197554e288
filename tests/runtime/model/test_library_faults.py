"""A library that fails once, at any of its calls: at most one request gets the error, the others are not affected."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.beams import BeamOptions
from runtime.errors import RuntimeFault
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.fakes import engine_of, reference
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.runtime.model.trouble import NativePanic, audit
from tests.tiny_models import tiny_path

CASES = (
    ("fake", "attention"),
    ("fake", "recurrent"),
    ("fake", "overlapping"),
    ("hf", "llama"),
    ("hf", "lfm2"),
    ("mlx", "llama"),
    ("mlx", "lfm2"),
)
FAULTS: dict[str, type[BaseException]] = {"exception": ZeroDivisionError, "panic": NativePanic}
TOLD = {"exception": ZeroDivisionError, "panic": RuntimeFault}
PREPARED = "prepared"  # the begin of a prepared forward
AWAITED = ("_awaited",)
AT_FIRST = ("open_pack", "load", "retain", "resize", "take_many", "split", PREPARED)  # there are few calls of these
LATER = ("compute", "begin", "prepare", "ready", "push", "push_rows", "launch", *AWAITED, "take")
CALLS = [*((member, 0) for member in AT_FIRST), *((member, 3) for member in LATER)]
MORE_CALLS = [*CALLS, *((member, at) for member in (*AT_FIRST, *LATER) for at in (1, 9))]  # where they cost little
BUDGET_TOKENS = 260
LONG = 6  # tokens that each stream generates
GREEDY = GenerationOptions(max_tokens=LONG, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)


class Work:
    """Requests of every kind, and the right answer for each; in two waves, between which no KV is in a pack.

    Args:
        model: The model under test.
        name: The name in `CASES`, which selects the reference.
    """

    def __init__(self, model: LanguageModel, name: str) -> None:
        self.model, self.name = model, name
        self.toy = model.info.backend == "fake"

    def ids(self, seed: int, n: int) -> list[int]:
        return [int(i) for i in np.random.default_rng(seed).integers(3, 250, n)]

    def rows(self, ids: list[int], start: int) -> np.ndarray[Any, Any]:
        """The log-probabilities after each token of `ids` from index `start` on."""
        if self.toy:
            return np.stack([reference(ids[: at + 1], self.name) for at in range(start, len(ids))])
        return expected(self.name, ids)[start:]

    def all(self) -> Iterator[list[tuple[str, Any, Callable[[Any], None]]]]:
        """Waves of requests: each with a name, an awaitable, and a check of its answer."""
        stem = self.ids(1, 20)
        yield [
            *(self._stream([*stem[:at], *self.ids(at, 3)]) for at in (20, 11, 0)),
            self._beams([*stem, 7]),
            self._branches([*stem[:15], 8]),
            *(self._query([*stem, *self.ids(30 + i, 1 + i % 2)]) for i in range(5)),
            self._score([*stem[:17], *self.ids(40, 12)]),
        ]
        yield [  # edges are split, dropped packs are loaded again
            self._query([*stem[:13], 9]),
            self._stream([*stem, 7, 9]),
            self._query([*stem, 200]),
            self._score([*stem[:5], 6, 7]),
        ]

    def _query(self, ids: list[int]) -> tuple[str, Any, Callable[[Any], None]]:
        def look(row: Any) -> None:
            np.testing.assert_allclose(row, self.rows(ids, len(ids) - 1)[0], atol=TOLERANCE, rtol=0)

        return "query", self.model.next_token_logprobs(ids), look

    def _score(self, ids: list[int]) -> tuple[str, Any, Callable[[Any], None]]:
        def look(records: Any) -> None:
            right = self.rows(ids[:-1], 0)[np.arange(len(ids) - 1), ids[1:]]
            np.testing.assert_allclose([record.logprob for record in records[1:]], right, atol=TOLERANCE, rtol=0)

        return "score", self.model.score(ids, top_k=2), look

    def _stream(self, ids: list[int]) -> tuple[str, Any, Callable[[Any], None]]:
        async def said() -> list[int]:
            return [record.token_id async for record in self.model.generate(ids, GREEDY)]

        return "stream", said(), lambda tokens: self._likeliest(ids, tokens)

    def _branches(self, ids: list[int]) -> tuple[str, Any, Callable[[Any], None]]:
        async def said() -> dict[int, list[int]]:
            tokens: dict[int, list[int]] = {}
            async for branch, record in self.model.continue_many(ids, 3, GREEDY):
                tokens.setdefault(branch, []).append(record.token_id)
            return tokens

        def look(tokens: dict[int, list[int]]) -> None:
            assert sorted(tokens) == [0, 1, 2]
            for each in tokens.values():
                self._likeliest(ids, each)

        return "branches", said(), look

    def _beams(self, ids: list[int]) -> tuple[str, Any, Callable[[Any], None]]:
        def look(found: Any) -> None:
            best = [int(token) for token in found[0].ids]
            assert len(best) == LONG
            own = self.rows([*ids, *best], len(ids) - 1)[:-1]
            assert found[0].logprob == pytest.approx(float(own[np.arange(LONG), best].sum()), abs=LONG * TOLERANCE)

        return "beams", self.model.beam_generate(ids, BeamOptions(3, LONG, ignore_eos=True)), look

    def _likeliest(self, ids: list[int], said: list[int]) -> None:
        assert len(said) == LONG
        rows = self.rows([*ids, *said], len(ids) - 1)[:-1]
        np.testing.assert_allclose(rows[np.arange(LONG), said], rows.max(-1), atol=2 * TOLERANCE, rtol=0)


async def play(work: Work, between: Callable[[], None]) -> list[tuple[str, BaseException]]:
    """Runs all waves, and returns the kinds of the requests that failed, with their errors. All other answers are checked."""
    told: list[tuple[str, BaseException]] = []
    for wave in work.all():
        answers = await asyncio.gather(*(awaited for _, awaited, _ in wave), return_exceptions=True)
        for (kind, _, look), answer in zip(wave, answers, strict=True):
            if isinstance(answer, BaseException):
                told.append((kind, answer))
            else:
                look(answer)
        between()
    return told


@contextmanager
def failing(backend: Any, member: str, at: int, error: BaseException) -> Iterator[list[int]]:
    """Makes call number `at` of a member fail, and yields the numbers of the calls that were made."""
    calls, count, name = list[int](), itertools.count(), "prepare" if member == PREPARED else member
    real = getattr(backend, name)

    def counted(real: Any) -> Any:
        def act(*args: Any, **kwargs: Any) -> Any:
            calls.append(next(count))
            if calls[-1] == at:
                raise error
            return real(*args, **kwargs)

        return act

    def prepared(*args: Any) -> Any:
        begin = real(*args)
        return None if begin is None else counted(begin)

    setattr(backend, name, prepared if member == PREPARED else counted(real))
    try:
        yield calls
    finally:
        delattr(backend, name)


@pytest.fixture(scope="module", params=[pytest.param(case, marks=pytest.mark.slow, id="-".join(case)) for case in CASES])
def work(request: pytest.FixtureRequest) -> Iterator[Work]:
    backend, name = request.param
    source: Any = tiny_path("llama" if backend == "fake" else name)
    if backend == "fake":
        source = (Behaviour(recurrent=name == "recurrent", overlaps=name == "overlapping"), None)
    with load(source, backend=backend, prefill_chunk_tokens=16, threads=1 if backend == "hf" else None) as model:
        model.set_kv_budget(BUDGET_TOKENS * model.info.kv_bytes_per_token + 80 * engine_of(model).backend.state_bytes)
        yield Work(model, name)


def test_one_failing_call_of_the_library_ends_at_most_one_request(work: Work) -> None:
    model = work.model
    scheduler = engine_of(model).scheduler
    backend: Any = engine_of(model).backend

    def put_away() -> None:
        engine_of(model).call(scheduler.cache.workspaces.drop_idle).result()

    reached: set[str] = set()
    kinds = itertools.cycle(sorted(FAULTS))
    for member, at in MORE_CALLS if work.toy else CALLS:
        if member != PREPARED and not hasattr(backend, member):
            continue
        model.clear_cache()
        fault = next(kinds)
        # when one call of the library fails in the middle of all kinds of work
        with failing(backend, member, at, FAULTS[fault](f"{member}, call {at}")) as calls:
            told = asyncio.run(play(work, put_away))
        # then at most one request gets the error, and the others have right answers
        failed = len(calls) > at
        assert len(told) <= failed, (member, at, told)
        assert {type(error) for _, error in told} <= {TOLD[fault]}, (member, at, told)
        if failed:
            reached.add(member)
        audit(model)
    # recurrent models copy KV into the trie, others let it refer to slots
    assert reached >= {"open_pack", "compute", "resize"} | ({"load", "take", "split"} if backend.recurrent else set())
    assert bool(reached & {*AWAITED}) == (backend.info.backend == "mlx")
    assert (PREPARED in reached) == (work.name == "overlapping" or (backend.info.backend == "mlx" and not backend.recurrent))


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("member", ["export", "restore"])
def test_a_failing_snapshot_or_restore_does_not_affect_other_requests(
    work: Work, member: str, fault: str, tmp_path: Path
) -> None:
    model, path = work.model, tmp_path / "snapshot"
    ids = work.ids(60, 30)
    model.clear_cache()
    model.cache_kv(ids)
    if member == "restore":
        model.kv_snapshot(ids, path)
        model.clear_cache()

    async def main() -> list[tuple[str, BaseException]]:
        act = model.kv_snapshot_async(ids, path) if member == "export" else model.kv_restore_async(path)
        told, answer = await asyncio.gather(play(work, lambda: None), act, return_exceptions=True)
        assert type(answer) is TOLD[fault]
        assert isinstance(told, list)
        return told

    with failing(engine_of(model).backend, member, 0, FAULTS[fault](member)):
        assert asyncio.run(main()) == []
    audit(model)
    assert not (member == "export" and path.exists())
    model.cache_kv(ids)
    assert model.kv_snapshot(ids, path) > 0
    model.clear_cache()
    assert model.kv_restore(path) == 30
