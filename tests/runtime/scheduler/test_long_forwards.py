"""A forward that can be interrupted may be long: a request that arrives does not wait for its end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime import GenerationOptions, LanguageModel, SamplingOptions, load
from runtime.backends.fake import Behaviour
from runtime.errors import SessionClosedError
from runtime.options.priority import Priority
from runtime.scheduler.jobs import settle
from runtime.scheduler.prefill.embedding import EmbedJob
from tests.fakes import KINDS, assert_right, engine_of, fake_model, generate_job, local, query_job, settled, some_ids, until
from tests.tiny_models import tiny_path

SHORT, LONG = 160, 600  # tokens that a model of 400 tokens a second computes in 0.4 and 1.5 seconds
NEW = [3, 1, 4, 1, 5]
GREEDY = SamplingOptions(temperature=0.0)


class Model:
    """A model of a known speed, by a clock that advances only with its tokens; `in_long` acts within a long forward."""

    def __init__(self, model: LanguageModel, speed: float) -> None:
        self.model, self._speed = model, speed
        self.sizes: list[int] = []  # of forwards, in tokens
        self.asked: list[Future[Any]] = []  # the last texts
        self.answered: list[list[int]] = []  # texts, in the order of their answers
        self.done = 0.5  # share of a long forward at which it checks for new requests
        self._seconds = 100.0
        self._due: list[float] = []  # seconds by which the clock advances at each reading
        self._act: Callable[[], object] | None = None

    def before(self, tokens: Any) -> None:
        """Called as a forward begins."""
        self.sizes.append(len(tokens))
        takes, looks = len(tokens) / self._speed, engine_of(self.model).backend.interrupted is not None
        self._due = [self.done * takes, (1 - self.done) * takes] if looks else [takes]
        if self._act is not None and len(tokens) > 0.4 * self._speed:
            act, self._act = self._act, None
            act()

    def clock(self) -> float:
        """Monotonic seconds."""
        if self._due:
            self._seconds += self._due.pop(0)
        return self._seconds

    def wait(self, seconds: float) -> None:
        """Advances the clock."""
        self._seconds += seconds

    def give_up(self) -> None:
        """The running forward is interrupted at its check: it takes no longer."""
        del self._due[1:]

    def in_long(self, act: Callable[[], object]) -> None:
        """Runs `act` in the middle of the next long forward."""
        self._act = act

    def ask(self, *texts: list[int], priority: Priority = Priority.INSPECTOR) -> list[Future[Any]]:
        """Submits texts together."""
        answers: list[Future[Any]] = [Future() for _ in texts]
        for text, answer in zip(texts, answers, strict=True):
            answer.add_done_callback(partial(self._heard, text))
        jobs = [replace(query_job(self.model, text, to), priority=priority) for text, to in zip(texts, answers, strict=True)]
        self.asked = answers  # before a forward can begin
        engine_of(self.model).submit(jobs)
        return answers

    def _heard(self, text: list[int], _: object) -> None:
        self.answered.append(text)

    def read(self, *texts: list[int], kind: str = "attention") -> None:
        """Submits texts, and checks the answers."""
        for text, answer in zip(texts, self.ask(*texts), strict=True):
            assert_right(answer.result(60)[0], text, kind)


@contextmanager
def calm_model(
    monkeypatch: pytest.MonkeyPatch, kind: str = "attention", *, interruptible: bool = True, speed: float = 400.0
) -> Iterator[Model]:
    """A model whose speed has been measured."""
    behaviour = Behaviour(interruptible=interruptible, recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    with fake_model(behaviour, prefill_chunk_tokens=4_096) as model:
        made = Model(model, speed)
        for module in ("prefill", "prompts"):
            monkeypatch.setattr(f"runtime.scheduler.prefill.{module}.time", SimpleNamespace(monotonic=made.clock))
        engine_of(model).call(lambda: setattr(behaviour, "before_forward", made.before)).result(60)
        made.read(some_ids(1, 100), kind=kind)
        made.sizes.clear()
        yield made


def test_texts_of_one_caller_are_read_in_long_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch) as model:
        model.read(*(some_ids(seed, 30) for seed in range(2, 42)))
        assert model.sizes == [LONG, LONG]
    with calm_model(monkeypatch, interruptible=False) as model:  # here a new request would have to wait
        model.read(*(some_ids(seed, 30) for seed in range(2, 42)))
        assert max(model.sizes) <= SHORT


def test_forwards_are_short_for_three_seconds_after_another_request_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch) as model:
        # when a request arrives while another runs
        model.in_long(lambda: model.ask(NEW))
        model.read(some_ids(2, 3_000))
        # then the begun forward is interrupted, and no forward is long for three seconds
        assert model.sizes[:2] == [LONG, 32]  # the next one has the minimum size
        first = next(place for place, size in enumerate(model.sizes) if place and size > SHORT)
        assert 3 * 400 <= sum(model.sizes[1:first]) <= 3 * 400 + 2 * SHORT
        assert min(model.sizes[first:-1]) >= LONG - 1  # rounded


def test_prompts_that_one_call_submits_one_by_one_are_read_in_long_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [some_ids(seed, 30) for seed in range(2, 102)]  # more than are worked on at a time

    async def answers(model: LanguageModel) -> list[int]:
        return [number async for number, _ in model.generate_many(texts, GenerationOptions(max_tokens=1, sampling=GREEDY))]

    with calm_model(monkeypatch) as model:
        assert sorted(asyncio.run(answers(model.model))) == [*range(100)]
        # then no forward is interrupted for the next prompt, which arrives while it runs, and most are long
        assert sum(model.sizes) <= 100 * 30
        assert sum(size for size in model.sizes if size > SHORT) > 0.5 * 100 * 30


@pytest.mark.parametrize(
    "handed_over", [False, True]
)  # whether the rest is submitted at once, as before an adapter is unloaded
def test_a_request_beside_many_prompts_of_one_call_has_half_of_the_turns(
    handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, other = [some_ids(seed, 30) for seed in range(2, 202)], some_ids(300, 600)

    async def tokens_until_answered(model: Model) -> int:
        """Tokens that are computed from the request to its answer."""
        begun, found = asyncio.Event(), Future[int]()

        async def many() -> None:
            async for _ in model.model.generate_many(texts, GenerationOptions(max_tokens=4, ignore_eos=True, sampling=GREEDY)):
                begun.set()

        def ask() -> None:
            """On the owner thread, as is the end: nothing is computed between the request and the count."""
            before = sum(model.sizes)
            job = generate_job(model.model, other, GenerationOptions(max_tokens=1, sampling=GREEDY))
            job.on_end = lambda error: settle(found, sum(model.sizes) - before, error=error)
            engine_of(model.model).submit([job])

        work = asyncio.create_task(many())
        await begun.wait()
        if handed_over:
            local(model.model).operations.end_turn()
        engine_of(model.model).call(ask)
        answer = await asyncio.wrap_future(found)
        await work
        return answer

    with calm_model(monkeypatch) as model:
        assert asyncio.run(tokens_until_answered(model)) < 2.5 * len(other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_arrives_during_a_long_forward_does_not_wait_for_its_end(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calm_model(monkeypatch, kind) as model:
        before = model.model.metrics().tokens_computed
        late: list[Future[Any]] = []
        model.in_long(lambda: late.extend(model.ask(NEW)))
        texts = [some_ids(seed, 30) for seed in range(2, 42)]
        model.read(*texts, kind=kind)
        assert_right(late[0].result(60)[0], NEW, kind)
        # then it is answered first, and each token was computed once except those of the interrupted forward
        assert model.answered[1] == NEW
        assert 0 < settled(model.model)[0].tokens_computed - before - (40 * 30 + len(NEW)) <= LONG


@pytest.mark.parametrize("priority", Priority)
def test_a_request_that_is_at_least_as_urgent_interrupts_a_forward(priority: Priority, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in Priority:
        with calm_model(monkeypatch) as model:
            model.in_long(partial(model.ask, NEW, priority=other))
            for answer in model.ask(*(some_ids(seed, 30) for seed in range(2, 42)), priority=priority):
                answer.result(60)
            # one call submits background texts one by one: they wait for each other
            assert model.sizes[0] == LONG
            computed = sum(model.sizes[1:])  # until the texts were answered
            assert (computed >= 40 * 30) == (other <= priority and other < Priority.BACKGROUND)


def test_a_forward_that_cannot_be_interrupted_runs_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch, interruptible=False) as model:
        model.wait(100.0)  # so that background work is read in long forwards here as well
        model.in_long(partial(model.ask, NEW, priority=Priority.CHAT))
        for answer in model.ask(*(some_ids(seed, 30) for seed in range(2, 42)), priority=Priority.BACKGROUND):
            answer.result(60)
        assert model.sizes[0] == LONG
        assert sum(model.sizes) == 40 * 30 + len(NEW)


def test_a_forward_near_its_end_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch) as model:
        model.done = 0.8  # 0.3 s are left
        model.in_long(partial(model.ask, NEW))
        model.read(*(some_ids(seed, 30) for seed in range(2, 42)))
        assert sum(model.sizes) == 40 * 30 + len(NEW)


def test_a_query_that_joins_another_does_not_interrupt_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch) as model:
        texts = [some_ids(seed, 30) for seed in range(2, 42)]
        model.in_long(partial(model.ask, texts[3]))
        model.read(*texts)
        assert sum(model.sizes) == 40 * 30


@pytest.mark.parametrize("speed", [10.0, 400.0])  # at 10 tokens a second all forwards are longer than they should be
@pytest.mark.parametrize("priority", [Priority.INSPECTOR, Priority.BACKGROUND])
def test_repeated_calls_to_the_engine_leave_most_of_the_time_to_the_forwards(
    priority: Priority, speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calm_model(monkeypatch, speed=speed) as model:
        engine = engine_of(model.model)

        def look_again() -> None:
            model.in_long(look_again)
            engine.call(look_again.__hash__)

        model.in_long(look_again)
        for answer in model.ask(*(some_ids(seed, 30) for seed in range(2, 302)), priority=priority):
            answer.result(60)
        assert 0.95 * 300 * 30 <= sum(model.sizes) <= 1.5 * 300 * 30  # some texts begin alike


@pytest.mark.parametrize(("quiet", "first"), [(0.0, SHORT), (20.0, LONG)])
def test_texts_are_embedded_in_long_forwards_once_nothing_else_arrived_for_a_while(
    quiet: float, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calm_model(monkeypatch) as model:
        monkeypatch.setattr("runtime.scheduler.prefill.embedding.time", SimpleNamespace(monotonic=model.clock))
        namespace, _ = local(model.model).operations.route(np.array(NEW, np.int32), None)
        model.wait(quiet)
        job = EmbedJob(np.empty(0, np.int32), namespace, paths=[np.array(some_ids(2, 3_000), np.int32)], places=[[0]])
        engine_of(model.model).submit([job])
        assert isinstance(job.future, Future)
        assert np.isfinite(job.future.result(60)).all()
        assert (model.sizes[0], sum(model.sizes)) == (first, 3_000)


def test_texts_that_arrive_right_after_a_long_answer_are_embedded_in_short_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch, speed=100.0) as model:
        monkeypatch.setattr("runtime.scheduler.prefill.embedding.time", SimpleNamespace(monotonic=model.clock))
        options = GenerationOptions(max_tokens=1_500, sampling=GREEDY, ignore_eos=True, top_k=0)  # 15 seconds
        assert len(list(model.model.generate_sync(NEW, options))) == 1_500
        model.sizes.clear()
        namespace, _ = local(model.model).operations.route(np.array(NEW, np.int32), None)
        job = EmbedJob(np.empty(0, np.int32), namespace, paths=[np.array(some_ids(2, 3_000), np.int32)], places=[[0]])
        engine_of(model.model).submit([job])
        assert isinstance(job.future, Future)
        job.future.result(60)
        assert model.sizes[0] == 100  # 0.4 seconds at 250 tokens a second, as far as is known by now


def test_a_guessed_speed_does_not_allow_long_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    with fake_model(Behaviour(interruptible=True, before_forward=lambda tokens: sizes.append(len(tokens)))) as model:
        assert_right(model.next_token_logprobs_sync(text := some_ids(2, 3_000)), text)
    assert sizes[0] <= SHORT


def test_the_forward_of_a_cancelled_query_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch) as model:
        model.in_long(lambda: model.asked[0].cancel())
        (asked,) = model.ask(some_ids(2, 3_000))
        until(asked.cancelled)
        assert not model.model.prefix_match(some_ids(2, 3_000)).tokens  # nothing was finished
        model.read(NEW)
        assert model.sizes[0] == LONG
        assert sum(model.sizes[1:]) == len(NEW)


def test_metrics_after_an_interrupted_forward_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    text = some_ids(2, 1_200)
    with calm_model(monkeypatch) as model:
        before = model.model.metrics()
        model.in_long(partial(model.ask, NEW))
        model.model.score_sync(text)
        after = settled(model.model)[0]
        given_up, *rest = model.sizes
    # then the score counts its tokens once: the interrupted forward is not included, and nothing was found in the cache
    assert given_up == LONG
    assert sum(rest) == len(text) + len(NEW)
    timings = after.recent[-1]
    assert (timings.kind, timings.computed, timings.reused) == ("score", len(text), 0)
    assert (after.last_computed, after.last_reused) == (len(text), 0)
    assert after.tokens_reused == before.tokens_reused
    # but the prefill counters, from which the speed follows, include the interrupted forward
    pushed = after.tokens_prefilled - before.tokens_prefilled
    assert pushed == given_up + sum(rest)
    assert after.prefill_seconds - before.prefill_seconds == pytest.approx(pushed / 400)


def test_a_shared_stem_counts_once_as_reused_after_an_interrupted_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    stem = some_ids(2, 400)
    with calm_model(monkeypatch) as model:
        before = model.model.metrics().tokens_reused
        model.in_long(partial(model.ask, NEW))
        model.read([*stem, *some_ids(3, 200)], [*stem, *some_ids(4, 200)])
        assert settled(model.model)[0].tokens_reused - before == len(stem)
        assert sum(model.sizes[1:]) == 800 + len(NEW)


class Impatient(Future[Any]):
    """The future of a caller that cancels once it was checked `looks` times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks  # checks at which it still waits

    def cancelled(self) -> bool:
        """Whether it is cancelled; once no looks are left, the check itself cancels it."""
        if self._looks == 0:
            return self.cancel()
        self._looks -= 1
        return False


@pytest.mark.parametrize("looks", [0, 1])
def test_a_cancelled_query_interrupts_no_forward_and_one_cancelled_meanwhile_interrupts_one(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calm_model(monkeypatch) as model:
        # given a query that arrives in the middle of a long forward, and is cancelled before or after it is noticed
        engine, gone = engine_of(model.model), Impatient(looks)
        model.in_long(lambda: engine.submit([query_job(model.model, NEW, gone)]))
        model.read(*(some_ids(seed, 30) for seed in range(2, 42)))
        # then the forward is interrupted only for a query that still waited, the others go on, and it is not computed
        assert gone.cancelled()
        assert sum(model.sizes) == 40 * 30 + LONG * looks
        assert model.sizes[0] == LONG


def test_a_request_that_interrupted_a_forward_interrupts_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with calm_model(monkeypatch) as model:
        # given a long forward whose only query is cancelled as a text to embed arrives
        namespace, _ = local(model.model).operations.route(np.array(NEW, np.int32), None)
        job = EmbedJob(np.empty(0, np.int32), namespace, paths=[np.array(NEW, np.int32)], places=[[0]])

        def leave() -> None:
            model.asked[0].cancel()
            model.give_up()
            engine_of(model.model).submit([job])

        model.in_long(leave)
        model.ask(some_ids(2, 3_000))
        # then that forward is interrupted, and the embedding's is not
        assert isinstance(job.future, Future)
        assert np.isfinite(job.future.result(60)).all()
        assert model.sizes == [LONG, len(NEW)]


def test_a_close_does_not_wait_for_a_long_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = ExitStack()
    model = stack.enter_context(calm_model(monkeypatch))
    model.in_long(engine_of(model.model).end)
    (answer,) = model.ask(some_ids(2, 3_000))
    with pytest.raises(SessionClosedError):
        answer.result(60)
    assert model.sizes == [LONG]
    with pytest.raises(SessionClosedError):  # the closed engine cannot report whether anything is left
        stack.close()


@pytest.mark.slow
def test_the_forward_of_a_library_is_interrupted_between_two_layers() -> None:
    # given a real model whose layers each take a millisecond a token
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tiny_path("llama")
    library: Any = AutoModelForCausalLM.from_pretrained(folder)
    layers = library.model.layers
    called: list[tuple[int, int]] = []  # layers, and the tokens that they were given
    slow = threading.Event()

    def before(place: int, _layer: object, given: tuple[Any, ...]) -> None:
        tokens = given[0].shape[1]
        called.append((place, tokens))
        if tokens > 200:
            slow.set()
        time.sleep(0.001 * tokens)

    for place, layer in enumerate(layers):
        layer.register_forward_pre_hook(partial(before, place))
    texts = [some_ids(seed, 32) for seed in range(2, 22)]
    with load((library, AutoTokenizer.from_pretrained(folder)), backend="hf", device="cpu", dtype="float32") as model:
        expected = [model.next_token_logprobs_uncached(text) for text in [*texts, NEW]]
        model.batch_next_token_logprobs_sync([some_ids(100 + i, 64) for i in range(3)])  # its speed is measured
        called.clear()
        slow.clear()
        # when another thread queries in the middle of a forward over many texts
        late: list[Any] = []

        def ask() -> None:
            slow.wait(30)
            late.append((model.next_token_logprobs_sync(NEW), len(called)))

        asking = threading.Thread(target=ask)
        asking.start()
        got = model.batch_next_token_logprobs_sync(texts)
        asking.join()
    # then the forward ends after that layer, and all answers are right
    tokens = next(n for _, n in called if n > 200)
    assert [place for place, n in called if n == tokens] == [0]
    np.testing.assert_allclose([*got, late[0][0]], expected, atol=1e-4, rtol=0)
    assert late[0][1] < len(called)  # before the texts were done
