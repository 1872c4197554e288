"""Pins: the path of a session is kept where the budget allows, and yields to running requests."""

from __future__ import annotations

import asyncio
import threading

import pytest

from runtime import InvalidRequestError, LanguageModel, MemoryBudgetError, SessionConfig
from runtime.backends.fake import Behaviour
from runtime.info import Pinned
from tests.fakes import fake_model, settled
from tests.runtime.session.subjects import Subject, piped

TOKEN = 2 * 16 * 8 + 96  # bytes per token in the trie, approximately: keys, values, scores
BUDGET = 400_000


def ids(seed: int, n: int) -> list[int]:
    return [(seed * 31 + 7 * i * (seed + 1)) % 250 for i in range(n)]


def flood(model: LanguageModel, rounds: int = 30, length: int = 100) -> None:
    """Caches other texts, more than the budget holds."""
    for seed in range(rounds):
        model.cache_kv([251, seed, *ids(seed, length)])


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
def test_other_texts_evict_unpinned_paths_and_not_the_path_of_a_session(recurrent: bool) -> None:
    with fake_model(Behaviour(recurrent=recurrent), kv_cache_bytes=BUDGET) as model:
        path, free = ids(1, 300), ids(2, 300)
        with model.open_session() as session:
            session.ensure_prefix_sync(path)
            model.cache_kv(free)
            flood(model, 40)
            assert model.prefix_match(free).tokens < 300
            assert model.prefix_match(path).tokens == 300
            before = settled(model)[0].tokens_computed
            assert session.prefill_suffix_sync([3]).prefilled == 1
            assert settled(model)[0].tokens_computed - before == 1
            report = settled(model)[1]
            assert report.pins == report.leases == 1
            assert 0 < report.leased_bytes <= report.bytes <= BUDGET
            # and the next log-probabilities need no forward, even after many other vectors
            flood(model, 40)
            before = settled(model)[0].tokens_computed
            session.logprobs_sync()
            assert settled(model)[0].tokens_computed == before
        flood(model, 40)
        assert model.prefix_match(path).tokens < 300
        assert settled(model)[1].pins == 0


def test_a_fork_keeps_the_pin_of_the_path_that_its_session_left() -> None:
    with fake_model(kv_cache_bytes=BUDGET) as model:
        path = ids(3, 200)
        session = model.open_session()
        session.ensure_prefix_sync(path)
        fork = session.fork()
        assert settled(model)[1].pins == 1  # one for both
        session.truncate_sync(0)
        flood(model, 40)
        assert model.prefix_match(path).tokens == 200
        fork.advance(5)
        fork.ensure_prefix_sync(ids(4, 50))
        assert settled(model)[1].pins == 1
        fork.close()
        session.close()
        assert settled(model)[1].pins == 0


def test_all_pins_together_hold_half_of_the_budget_and_the_oldest_lapse_first() -> None:
    with fake_model(kv_cache_bytes=BUDGET) as model:
        sessions = [model.open_session(SessionConfig(top_k=None)) for _ in range(8)]
        for seed, session in enumerate(sessions):
            session.ensure_prefix_sync(ids(10 + seed, 200))
            report = settled(model)[1]
            assert report.leased_bytes <= BUDGET // 2
        assert 0 < report.pins < 8
        flood(model, 40)
        held = [model.prefix_match(session.ids).tokens for session in sessions]
        report = settled(model)[1]
        assert report.pins > 0
        assert held[-report.pins :] == [200] * report.pins
        assert held[0] < 200
        for session in sessions:  # all sessions continue
            Subject(model, "attention", toy=True).check(session.logprobs_sync(), session.ids)
            session.close()


def test_a_path_larger_than_half_of_the_budget_is_pinned_in_part() -> None:
    with fake_model(kv_cache_bytes=BUDGET) as model:
        path = ids(5, 900)
        for end in range(100, 901, 100):
            model.cache_kv(path[:end])
        pinned = asyncio.run(model.pin_async(path))
        assert 300 <= pinned.tokens < 900
        assert settled(model)[1].leased_bytes <= BUDGET // 2
        model.unpin(pinned.pin)


def test_pins_yield_to_requests_to_a_smaller_budget_and_to_clearing() -> None:
    with fake_model(kv_cache_bytes=BUDGET) as model, model.open_session() as session:
        session.ensure_prefix_sync(ids(6, 500))
        # given a text that needs nearly the whole budget
        long = ids(7, 1200)
        Subject(model, "attention", toy=True).check(model.next_token_logprobs_sync(long), long)
        # when the session continues, it is pinned again
        session.ensure_prefix_sync(ids(6, 501))
        assert settled(model)[1].pins == 1
        model.set_kv_budget(50_000)
        assert settled(model)[1].bytes <= 50_000
        model.set_kv_budget(BUDGET)
        session.ensure_prefix_sync(ids(6, 502))
        model.clear_cache()
        report = settled(model)[1]
        assert (report.bytes, report.leases, report.pins) == (0, 0, 0)
        Subject(model, "attention", toy=True).check(session.logprobs_sync(), ids(6, 502))


def test_a_refused_budget_leaves_pins_usable() -> None:
    with fake_model(kv_cache_bytes=BUDGET) as model, model.open_session() as session:
        session.ensure_prefix_sync(ids(8, 100))
        with pytest.raises((MemoryBudgetError, InvalidRequestError)):
            model.set_kv_budget(0)
        session.ensure_prefix_sync(ids(8, 101))
        assert settled(model)[1].pins == 1


@pytest.mark.parametrize("bad", [[300], [-1], [], ["a"], None])
def test_a_pin_of_bad_ids_is_refused_at_once(bad: list[int]) -> None:
    with fake_model() as model, pytest.raises(InvalidRequestError):
        model.pin(bad)


@pytest.mark.slow
def test_pins_over_the_pipe_are_counted_and_released() -> None:
    with piped("fake", "attention") as case:
        model = case.model
        model.cache_kv([1, 2, 3, 4])
        pin = model.pin([1, 2, 3, 4, 5])
        assert asyncio.run(model.pin_async([1, 2, 3], pin)) == Pinned(pin, 3)
        case.settle()
        assert (model.cache_report().pins, model.cache_report().leases) == (1, 1)
        with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
            model.pin([300])
        for _ in range(2):
            model.unpin(pin)
        asyncio.run(model.unpin_async(12345))
        with model.open_session() as session:
            session.ensure_prefix_sync([1, 2, 3])
            case.settle()
            assert model.cache_report().pins == 1


def test_pins_are_released_when_the_model_closes() -> None:
    with fake_model() as model:
        pin = model.pin([1])
        model.unpin(pin)
    model.unpin(model.pin([1, 2]))


def test_a_session_without_a_cache_is_correct_and_pins_nothing() -> None:
    with fake_model(cache=False) as model, model.open_session() as session:
        case = Subject(model, "attention", toy=True)
        assert session.ensure_prefix_sync(ids(1, 20)).prefilled == 20
        session.prefill_suffix_sync([3, 4])
        with session.fork() as fork:
            fork.truncate_sync(21)
            case.check(fork.logprobs_sync(), [*ids(1, 20), 3])
        case.check(session.logprobs_sync(), session.ids)
        assert settled(model)[1].pins == 0


def test_sessions_on_many_threads_leave_no_lease() -> None:
    with fake_model(kv_cache_bytes=BUDGET) as model:
        stem = model.open_session()
        stem.ensure_prefix_sync(ids(9, 60))
        wrong: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for round_ in range(6):
                    with stem.fork() as fork:
                        fork.prefill_suffix_sync([number, round_, number])
                        fork.advance(round_)
                        Subject(model, "attention", toy=True).check(
                            fork.logprobs_sync(), [*ids(9, 60), number, round_, number, round_]
                        )
                        fork.truncate_sync(60 + round_ % 3)
            except BaseException as error:  # noqa: BLE001  # reported by the test
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert settled(model)[1].pins == 1
        stem.close()
