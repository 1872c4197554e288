"""The threads that compute masks: a slow mask, and a close while masks wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from runtime.errors import SessionClosedError
from runtime.grammar.grammars import Grammars
from runtime.grammar.masks import Mask, MaskWorkers
from runtime.grammar.source import Grammar
from tests.runtime.grammar.matchers import watch_masks
from tests.runtime.grammar.test_constraint import vocabulary

QUICK, SLOW = Grammar.regex("[0-9]{12}"), Grammar.regex("[a-c]{8}")


class Masks:
    """The masks of `SLOW` are held until `gate` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.reached, self.quick = threading.Event(), threading.Event(), threading.Event()
        watch_masks(monkeypatch, self._hold)
        self.grammars = Grammars(vocabulary)
        self.slow, self.other = self.grammars.constraint(SLOW), self.grammars.constraint(QUICK)

    def _hold(self, grammar: str, _: int) -> None:
        if "a-c" not in grammar:
            self.quick.set()
            return
        self.reached.set()
        assert self.gate.wait(60)

    def queue(self) -> None:
        """Starts the slow mask, and queues a quick one behind it."""
        self.slow.begin()
        assert self.reached.wait(60)
        self.other.begin()


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Masks]:
    made = Masks(monkeypatch)
    yield made
    made.gate.set()
    made.grammars.close()


def test_masks_behind_a_slow_one_are_computed_while_a_caller_waits_for_it(masks: Masks) -> None:
    masks.queue()
    assert not masks.slow.ready(0.0)
    assert masks.quick.wait(60)
    # and the slow one is still awaited
    assert not masks.slow.ready(0.0)


def test_close_ends_the_masks_that_are_not_started() -> None:
    workers, begun, gate, empty = MaskWorkers(), threading.Event(), threading.Event(), np.zeros(4, np.bool_)

    def slow() -> Mask:
        begun.set()
        assert gate.wait(60)
        return empty

    first, second = workers.submit(slow), workers.submit(lambda: empty)
    assert begun.wait(60)
    closing = threading.Thread(target=workers.close)
    closing.start()
    try:
        with pytest.raises(SessionClosedError, match="the model is closed"):
            second.result(60)
    finally:
        gate.set()
        closing.join(60)
    assert first.result() is empty
    with pytest.raises(RuntimeError):
        workers.submit(slow)
