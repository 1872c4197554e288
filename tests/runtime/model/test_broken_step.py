"""A step of the scheduler that fails in the middle, by a bug of ours: no request waits for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from runtime import load
from runtime.backends.fake import Behaviour
from runtime.beams import BeamOptions
from runtime.errors import RuntimeFault
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.scheduler.decode.rows import Drawn, Stream
from tests.runtime.model.trouble import NativePanic

PATIENCE_SECONDS = 20
MANY = 100_000  # tokens: no request is done before the step fails
LONG = GenerationOptions(max_tokens=MANY, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, resolve=False)


def at_call(number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """The real function, which fails from its call of this number on."""
    calls = 0

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= number:
            raise NativePanic("broken")
        return real(*args, **named)

    return counted


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize(("owner", "name"), [(Drawn, "record"), (Stream, "deliver")])
def test_a_failing_step_ends_every_running_and_later_request_with_an_error(
    owner: type, name: str, overlaps: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with load((Behaviour(overlaps=overlaps, delay=0.001), None), backend="fake") as model:

        async def answer(prompt: list[int]) -> BaseException | None:
            try:
                async for _ in model.generate(prompt, LONG):
                    pass
            except BaseException as error:  # noqa: BLE001  # the test looks at it
                return error
            return None

        async def searched() -> BaseException | None:
            try:
                await model.beam_generate([7, 8], BeamOptions(width=2, max_tokens=MANY, ignore_eos=True))
            except BaseException as error:  # noqa: BLE001  # the same
                return error
            return None

        async def everybody() -> list[BaseException | None]:
            tasks = [asyncio.create_task(answer([5 + i, 6])) for i in range(3)] + [asyncio.create_task(searched())]
            await asyncio.sleep(0.05)
            monkeypatch.setattr(owner, name, at_call(4, getattr(owner, name)))
            scored = asyncio.create_task(model.score(list(range(200))))
            done, waiting = await asyncio.wait([*tasks, scored], timeout=PATIENCE_SECONDS)
            assert not waiting
            assert scored in done
            scored.exception()  # it may have ended before the fault
            return [task.result() for task in tasks]

        errors = asyncio.run(everybody())
        assert all(isinstance(error, RuntimeFault) for error in errors), errors
        # and later requests fail at once
        with pytest.raises(RuntimeFault):
            model.next_token_logprobs_sync([1, 2])
