"""What can wait is done while nobody waits for anything, and gives way to whoever comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from runtime.backends.fake import Behaviour, FakeBackend
from runtime.errors import SessionClosedError
from runtime.model import LocalModel, load
from runtime.options import GenerationOptions, SamplingOptions
from tests.fakes import Gate, assert_right, fake_model, reference, settled, some_ids, until

GREEDY = GenerationOptions(max_tokens=20, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)


class Chores:
    """What the fake backend does at rest: `left` parts, each of which computes a token.

    Attributes:
        lingers: A part lasts until somebody asks for something.
        fault: A part raises this.
        busy: Whether anything ran or waited, at each part.
    """

    def __init__(self) -> None:
        self.left = 0
        self.lingers = False
        self.fault: BaseException | None = None
        self.busy: list[bool] = []
        self.phases: list[str] = []
        self.begun = threading.Event()
        self.model: LocalModel | None = None

    def rest(self, backend: FakeBackend, asked: Callable[[], bool]) -> None:
        assert self.model is not None
        engine = self.model._engine
        self.busy.append(engine.scheduler.busy)
        self.phases.append(engine.heartbeat()[1])
        self.begun.set()
        backend.count(1)
        if self.fault is not None:
            raise self.fault
        until(lambda: asked() or not self.lingers)
        if not self.lingers:
            self.left -= 1


@pytest.fixture
def chores(monkeypatch: pytest.MonkeyPatch) -> Chores:
    made = Chores()
    monkeypatch.setattr(FakeBackend, "due", property(lambda _: made.left > 0))
    monkeypatch.setattr(FakeBackend, "rest", lambda self, asked: made.rest(self, asked))
    return made


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def model(chores: Chores, gate: Gate) -> Iterator[LocalModel]:
    with fake_model(Behaviour(before_forward=gate)) as made:
        chores.model = made
        yield made


def test_nothing_is_done_while_anybody_waits(model: LocalModel, chores: Chores, gate: Gate) -> None:
    # given parts that come due in the middle of answers
    async def main() -> None:
        streams = [model.generate(some_ids(i, 5), GREEDY) for i in range(3)]
        first = [await anext(stream) for stream in streams]
        chores.left = 3
        for stream, record in zip(streams, first, strict=True):
            answer = [record.token_id, *[each.token_id async for each in stream]]
            assert len(answer) == 20

    asyncio.run(main())
    # when they have ended
    until(lambda: not chores.left)
    # then all parts were done, each with nobody in work, and under the limit of a step
    assert chores.busy == [False] * 3
    assert chores.phases == ["step"] * 3
    until(lambda: model._engine.heartbeat()[1] == "idle")


def test_whoever_comes_meanwhile_is_answered(model: LocalModel, chores: Chores) -> None:
    # given a part that ends only when somebody asks
    chores.lingers, chores.left = True, 1
    model.prefix_match([1])
    assert chores.begun.wait(30)
    chores.begun.clear()  # before anybody asks: soon after the answer it is begun again
    # when somebody does
    ids = some_ids(1, 9)
    assert_right(model.next_token_logprobs_sync(ids), ids)
    # then the part is taken up again afterwards
    assert chores.begun.wait(30)
    chores.lingers = False
    until(lambda: not chores.left)
    assert chores.busy.count(True) == 0


def test_what_is_computed_at_rest_is_counted(model: LocalModel, chores: Chores) -> None:
    ids = some_ids(1, 9)
    model.next_token_logprobs_sync(ids)
    before = settled(model)[0]
    chores.left = 4
    model.prefix_match([1])
    until(lambda: not chores.left)
    until(lambda: model.metrics().tokens_computed == before.tokens_computed + 4)
    assert model.metrics().forward_calls == before.forward_calls + 4


def test_a_cancelled_answer_leaves_a_rest_behind_it(model: LocalModel, chores: Chores, gate: Gate) -> None:
    # given an answer that is cancelled in the middle of a forward
    async def main() -> None:
        gate.shut(after=1)  # behind the first token
        stream = model.generate(some_ids(1, 5), GREEDY)
        await anext(stream)
        assert await asyncio.to_thread(gate.reached.wait, 30)
        chores.left = 2
        await stream.aclose()
        gate.open()

    asyncio.run(main())
    until(lambda: not chores.left)
    assert chores.busy == [False, False]
    ids = some_ids(1, 5)
    assert int(model.next_token_logprobs_sync(ids).argmax()) == int(reference(ids).argmax())


def test_a_model_closes_in_the_middle_of_a_rest(chores: Chores) -> None:
    with load((Behaviour(), None), backend="fake") as model:
        chores.model = model
        chores.lingers, chores.left = True, 1
        model.prefix_match([1])
        assert chores.begun.wait(30)
        model.close()
        with pytest.raises(SessionClosedError):
            model.next_token_logprobs_sync([1])


@pytest.mark.parametrize("fault", [ValueError("broken"), BaseException("a native panic")])
def test_a_rest_that_fails_takes_nobody_along(
    model: LocalModel, chores: Chores, fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    chores.fault, chores.left = fault, 5
    model.prefix_match([1])
    assert chores.begun.wait(30)
    ids = some_ids(1, 9)
    assert_right(model.next_token_logprobs_sync(ids), ids)
    assert len(chores.busy) == 1  # it is not tried again
    assert "is left" in caplog.text
