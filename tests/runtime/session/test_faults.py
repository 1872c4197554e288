"""Sessions under faults: a failed call leaves the session as it was; after a fatal one, every later call names the cause."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

import pytest

from runtime import (
    EngineDiedError,
    GenerationOptions,
    MemoryBudgetError,
    NonFiniteLogitsError,
    SessionClosedError,
    SessionFatalError,
    spawn,
)
from runtime.backends.fake import Behaviour
from tests.fakes import Gate, fake_model, settled
from tests.runtime.process.conftest import is_running
from tests.runtime.session.subjects import Subject, greedy
from tests.runtime.session.test_refusals import everything

GUILTY = 258


def ids(n: int) -> list[int]:
    return [(7 * i) % 250 for i in range(n)]


def test_a_failed_prefill_rolls_back_to_the_reused_part() -> None:
    behaviour = Behaviour(nan_on=frozenset([GUILTY]))
    with fake_model(behaviour) as model, model.open_session() as session:
        case = Subject(model, "attention", toy=True)
        session.ensure_prefix_sync(ids(20))
        session.prefill_suffix_sync([5, 6])
        for fill, more in ((session.prefill_suffix_sync, [1, GUILTY]), (session.prefill_sync, [GUILTY, 4])):
            with pytest.raises(NonFiniteLogitsError):
                fill(more)
            assert session.ids == [*ids(20), 5, 6]
        with pytest.raises(NonFiniteLogitsError):
            session.ensure_prefix_sync([*ids(12), 3, GUILTY, 2])
        report = session.explain_context()
        assert (session.ids, report.prefix) == (ids(12), 12)
        assert report.divergence is not None
        case.check(session.logprobs_sync(), ids(12))
        # and the faulty tokens are not cached
        assert model.prefix_match([*ids(12), 3, GUILTY, 2]).tokens <= 13


def test_a_cancelled_prefill_rolls_back_too() -> None:
    gate = Gate()
    with fake_model(Behaviour(before_forward=gate)) as model, model.open_session() as session:
        session.ensure_prefix_sync(ids(20))

        async def cancelled() -> None:
            gate.shut()
            task = asyncio.create_task(session.ensure_prefix([*ids(9), 1, 2, 3]))
            await asyncio.to_thread(gate.reached.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()

        asyncio.run(cancelled())
        assert session.ids == ids(9)
        Subject(model, "attention", toy=True).check(session.logprobs_sync(), ids(9))


def test_a_failed_decode_keeps_the_tokens_already_returned() -> None:
    behaviour = Behaviour()
    with fake_model(behaviour) as model, model.open_session() as session:
        session.ensure_prefix_sync(ids(10))
        plain = [r.token_id for r in model.generate_sync(ids(10), greedy(5))]
        model.clear_cache()
        behaviour.nan_on = frozenset([plain[2]])
        got: list[int] = []
        with pytest.raises(NonFiniteLogitsError):
            got.extend(record.token_id for record in session.decode_sync(greedy(5)))
        assert got == plain[:3]  # the distribution after the third is not a number
        assert session.ids == [*ids(10), *got]
        behaviour.nan_on = frozenset()
        assert [r.token_id for r in session.decode_sync(greedy(5 - len(got)))] == plain[len(got) :]


def test_an_unexpected_error_is_fatal_and_named_by_every_later_call() -> None:
    behaviour = Behaviour()
    with fake_model(behaviour) as model:
        session, other = model.open_session(), model.open_session()
        session.ensure_prefix_sync(ids(20))
        other.ensure_prefix_sync(ids(15))
        fork = session.fork()
        first = RuntimeError("the library broke")
        behaviour.raise_on = {GUILTY: first}
        with pytest.raises(RuntimeError, match="the library broke"):
            session.prefill_suffix_sync([3, 4, GUILTY])
        for act in [*everything(session), session.explain_context]:
            with pytest.raises(SessionFatalError, match="RuntimeError: the library broke") as refused:
                act()
            assert refused.value.__cause__ is first
        assert session.ids == ids(20)  # the ids, from which a new session can start
        assert model.prefix_match([*ids(20), 3, 4, GUILTY]).tokens == 20  # nothing of the fault is published
        # its pin is removed; the other sessions keep theirs and continue
        other.prefill_suffix_sync([9])
        fork.prefill_suffix_sync([9])
        assert settled(model)[1].pins == 2
        for each in (session, other, fork):
            each.close()


def test_a_prefill_beyond_the_memory_budget_is_not_fatal() -> None:
    with fake_model(kv_cache_bytes=60_000) as model, model.open_session() as session:
        session.ensure_prefix_sync(ids(20))
        with pytest.raises(MemoryBudgetError):
            session.prefill_suffix_sync(ids(2000))
        assert session.ids == ids(20)
        Subject(model, "attention", toy=True).check(session.logprobs_sync(), ids(20))


def test_a_closed_model_ends_its_sessions() -> None:
    with fake_model() as model:
        session = model.open_session()
        session.ensure_prefix_sync(ids(5))
        session.logprobs_sync()
        model.prefix_match([1])
        session.close()
        late = model.open_session()
    with pytest.raises(SessionClosedError, match="the model is closed"):
        late.ensure_prefix_sync(ids(5))
    late.close()


def test_a_garbage_collected_session_holds_no_pin() -> None:
    with fake_model() as model:
        session = model.open_session()
        session.ensure_prefix_sync(ids(30))
        assert settled(model)[1].pins == 1
        del session
        gc.collect()
        assert settled(model)[1].pins == 0


@pytest.mark.slow
def test_an_engine_killed_during_a_decode_is_named_by_every_later_call() -> None:
    client = asyncio.run(spawn("anything", "fake"))
    with client, client.open_session() as session:
        session.ensure_prefix_sync(ids(20))

        async def killed() -> list[int]:
            got: list[int] = []
            records = session.decode(GenerationOptions(max_tokens=100_000, ignore_eos=True))

            async def read() -> None:
                async for record in records:
                    got.append(record.token_id)
                    if len(got) == 3:
                        os.kill(client.pid, signal.SIGKILL)

            with pytest.raises(EngineDiedError):
                await read()
            return got

        got = asyncio.run(killed())
        assert len(got) >= 3
        assert session.ids == [*ids(20), *got]
        for act in [*everything(session), session.explain_context]:
            with pytest.raises(SessionFatalError, match="EngineDiedError") as refused:
                act()
            assert isinstance(refused.value.__cause__, EngineDiedError)
        assert not is_running(client.pid)
    assert session.closed
