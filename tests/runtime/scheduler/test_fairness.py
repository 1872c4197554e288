"""How long requests wait for each other, counted in forwards: a chat continues while long prompts are read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel
from runtime.backends.fake import Behaviour
from runtime.errors import InvalidRequestError
from runtime.options.generation import GenerationOptions
from runtime.options.priority import Priority
from runtime.records import Scores
from runtime.scheduler.jobs import GenerateJob, ScoreJob
from tests.fakes import KINDS, engine_of, fake_model, generate_job, query_job, some_ids

LONG = 8_000  # tokens


def chat(model: LanguageModel, ids: list[int], log: list[int | str], n: int) -> tuple[GenerateJob, threading.Event]:
    """A chat that writes "token" into the log; the event comes with its end."""
    ended = threading.Event()
    job = generate_job(model, ids, GenerationOptions(max_tokens=n, seed=1, ignore_eos=True))
    job.on_run = lambda run: log.extend(["token"] * len(run))
    job.on_end = lambda error: ended.set()
    engine_of(model).submit([job])
    return job, ended


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompts", [1, 2])
def test_at_most_one_chunk_and_one_step_run_between_two_tokens_of_a_chat(kind: str, prompts: int) -> None:
    # given a chat that streams, when prompts of 8,000 tokens arrive
    log: list[int | str] = []  # rows of each forward, and the chat's tokens
    behaviour = Behaviour(
        before_forward=lambda tokens: log.append(len(tokens)), recurrent=kind == "recurrent", overlaps=kind == "overlapping"
    )
    with fake_model(behaviour, prefill_chunk_tokens=256) as model:
        model.cache_kv(some_ids(0, 20))
        log.clear()
        job, ended = chat(model, some_ids(0, 20), log, 100_000)
        read: list[Future[Any]] = [Future() for _ in range(prompts)]
        engine_of(model).submit(
            [
                replace(query_job(model, some_ids(5 + i, LONG), waiter), priority=Priority.BACKGROUND)
                for i, waiter in enumerate(read)
            ]
        )
        for waiter in read:
            waiter.result(60)
        job.cancelled = True
        engine_of(model).nudge()
        assert ended.wait(10)
        # then, while they are read, each gap between two tokens holds one decode step of one row and at most one chunk
        chunks = [at for at, entry in enumerate(log) if isinstance(entry, int) and entry > 1]
        del log[: chunks[0]], log[chunks[-1] + 1 - chunks[0] :]
        tokens = [at for at, entry in enumerate(log) if entry == "token"]
        gaps = [[rows for rows in log[a + 1 : b] if isinstance(rows, int)] for a, b in pairwise(tokens)]
        for gap in gaps:
            assert sorted(gap)[0] == 1
            assert len(gap) <= 2
            assert max(gap) <= 256
        # and all but the first and the last chunks lay in such gaps
        assert sum(max(gap) for gap in gaps if len(gap) == 2) >= prompts * LONG - 2 * 256


@pytest.mark.slow
def test_a_short_query_does_not_wait_for_a_long_prompt() -> None:
    # given a long prompt that is being read, when a query of the same priority arrives
    log: list[int | str] = []
    with fake_model(Behaviour(before_forward=lambda tokens: log.append(len(tokens))), prefill_chunk_tokens=64) as model:
        long, short = Future[Any](), Future[Any]()
        short.add_done_callback(lambda _: log.append("answered"))
        paths = (some_ids(5, LONG), long), (some_ids(6, 30), short)
        engine_of(model).submit([query_job(model, ids, waiter) for ids, waiter in paths])
        long.result(60)
        # then it is answered after one chunk of the long one at most
        assert log.index("answered") <= 2


def test_the_more_urgent_prompt_is_read_first_even_if_it_arrives_later() -> None:
    # given a long background text that is being read, when a chat's prompt arrives, which is long as well
    log: list[tuple[int, int]] = []  # of each forward: the background's tokens, and the chat's
    asked, chat = Future[Any](), Future[Any]()

    def note(tokens: Any) -> None:
        log.append((int((tokens < 100).sum()), int((tokens >= 100).sum())))

    with fake_model(Behaviour(before_forward=note), prefill_chunk_tokens=64) as model:
        path = [token % 100 for token in some_ids(5, 1_000)]
        urgent = [100 + token % 100 for token in some_ids(6, 640)]

        def arrive(_: object) -> None:
            if len(log) == 1:
                engine_of(model).submit([replace(query_job(model, urgent, chat), priority=Priority.CHAT)])

        job = replace(query_job(model, path, asked), priority=Priority.BACKGROUND, on_progress=arrive)
        engine_of(model).submit([job])
        asked.result(60)
        assert chat.done()
    assert_read_first(log)


def test_the_more_urgent_score_is_read_first() -> None:
    # given a background text that is being scored, when a chat's prompt is to be scored
    log: list[tuple[int, int]] = []  # of each forward: the background's tokens, and the chat's
    answered: list[Priority] = []

    def note(tokens: Any) -> None:
        log.append((int((tokens < 100).sum()), int((tokens >= 100).sum())))

    with fake_model(Behaviour(before_forward=note), prefill_chunk_tokens=64) as model:
        path = [token % 100 for token in some_ids(5, 1_000)]
        urgent = [100 + token % 100 for token in some_ids(6, 640)]

        def score(ids: list[int], priority: Priority, on_progress: Callable[[object], None]) -> Future[Scores]:
            scores: Future[Scores] = Future()
            scores.add_done_callback(lambda _: answered.append(priority))  # on the owner thread
            namespace = model.info.kv_fingerprint
            job = ScoreJob(np.array(ids, np.int32), namespace, priority, future=scores, k=2, on_progress=on_progress)
            engine_of(model).submit([job])
            return scores

        chats: list[Future[Scores]] = []

        def arrive(_: object) -> None:
            if not chats:
                chats.append(score(urgent, Priority.CHAT, lambda _: None))

        assert len(score(path, Priority.BACKGROUND, arrive).result(60)) == 1_000
        assert len(chats[0].result(60)) == 640
        with pytest.raises(InvalidRequestError, match="unknown priority 'chat'"):
            model.score_sync([1, 2], priority="chat")  # type: ignore[arg-type]  # the mistake
    assert_read_first(log)
    assert answered == [Priority.CHAT, Priority.BACKGROUND]


def assert_read_first(log: list[tuple[int, int]]) -> None:
    """Except for chunks already in work, the background waits until the chat's 640 tokens are read."""
    first = next(at for at, (_, urgent_tokens) in enumerate(log) if urgent_tokens)
    assert first <= 2
    assert log[first : first + 10] == [(0, 64)] * 10
    assert all(urgent_tokens == 0 for _, urgent_tokens in log[first + 10 :])
    assert sum(tokens for tokens, _ in log) == 1_000
