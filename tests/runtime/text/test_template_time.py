"""The time limit of a render counts the child's time, not the time that the machine was asleep."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.text.template import RenderChild, TemplateTimeoutError

SLEPT = 60.0  # seconds
ANSWER = json.dumps({"text": "ok"}).encode()


class Machine:
    """A clock, and the socket of a child on it: the machine sleeps in the first wait, every other one takes as long as it may.

    Args:
        needs: Seconds awake after which the child answers.
    """

    def __init__(self, needs: float) -> None:
        self.needs, self.now, self.awake, self._wait = needs, 100.0, 0.0, 0.0
        self._answer = len(ANSWER).to_bytes(4, "little") + ANSWER

    def monotonic(self) -> float:
        return self.now

    def settimeout(self, seconds: float) -> None:
        self._wait = seconds

    def sendall(self, _: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    def recv(self, n: int) -> bytes:
        if self.awake < self.needs:
            self.now += self._wait + (0.0 if self.awake else SLEPT)
            self.awake += self._wait
            raise TimeoutError
        part, self._answer = self._answer[:n], self._answer[n:]
        return part


@pytest.fixture(params=[None, 1 << 50], ids=["bounded", "watched"])
def watched_bytes(request: pytest.FixtureRequest) -> Any:
    return request.param


def child_on(machine: Machine) -> RenderChild:
    """A child with the clock and socket of the simulated machine."""
    process: Any = SimpleNamespace(pid=os.getpid(), kill=lambda: None, wait=lambda: None)
    pipe: Any = machine
    return RenderChild(process, pipe, machine.monotonic)


def test_a_sleep_of_the_machine_does_not_count(watched_bytes: int | None) -> None:
    machine = Machine(needs=1.9)
    assert child_on(machine).ask(b"{}", 2.0, watched_bytes) == {"text": "ok"}
    assert machine.now > 100 + SLEPT


def test_the_time_limit_still_applies_after_a_sleep(watched_bytes: int | None) -> None:
    machine = Machine(needs=1000.0)
    with pytest.raises(TemplateTimeoutError):
        child_on(machine).ask(b"{}", 2.0, watched_bytes)
    assert machine.awake == pytest.approx(2.0, abs=0.01)
