"""Checks an answer during which the user puts the machine to sleep and wakes it: the only part that needs a person."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

from app.doctor.finding import Finding, held
from app.doctor.reference import references, write_reference
from runtime import EngineDiedError, GenerationOptions, LanguageModel, spawn

NAME: Final = "an answer through sleep"
TOKENS: Final = 128  # of an answer, which is repeated until the machine has slept
LEAST: Final = 5.0  # seconds of sleep; setting a clock changes the difference by less
PATIENCE: Final = 240.0  # seconds that the machine may stay awake
ADVICE: Final = "answers after sleep are not to be trusted here: load the model again, and report it with this table"
AGAIN: Final = "run --only sleep again, and close the lid or choose Sleep for half a minute while it runs"


def sleep(backend: str) -> Iterator[Finding]:
    """Runs the check on an engine process, as the window does."""
    [llama] = [reference for reference in references() if reference.name == "llama"]
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        folder = write_reference(Path(room) / "llama", llama)
        yield asyncio.run(_on_engine(folder, backend, llama.text))


async def _on_engine(folder: Path, backend: str, prompt: list[int]) -> Finding:
    async with await spawn(folder, backend) as model:
        return await through_sleep(model, prompt)


async def through_sleep(
    model: LanguageModel, prompt: list[int], asleep: Callable[[], float] | None = None, *, patience: float = PATIENCE
) -> Finding:
    """Repeats an answer until the machine has slept: that answer and the next must have the tokens of the first.

    Args:
        model: In an engine process.
        prompt: Token ids.
        asleep: Returns the seconds that the machine has slept; by default `seconds_asleep`.
        patience: Seconds that the machine may stay awake.
    """
    slept = asleep or seconds_asleep
    before, deadline = slept(), time.monotonic() + patience
    try:
        expected = found = await _answer(model, prompt)
        while slept() - before < LEAST:
            if time.monotonic() > deadline:
                return Finding(NAME, f"the machine stayed awake for {patience:.0f} s", "", "skipped", AGAIN)
            found = await _answer(model, prompt)
        gap = slept() - before
        after = await _answer(model, prompt)
    except EngineDiedError as error:
        return Finding(NAME, "the engine ended", "goes on", "missed", f"{error}; {ADVICE}")
    wrong = sum(one != other for answer in (found, after) for one, other in zip(answer, expected, strict=True))
    shown = f"{wrong} of {2 * TOKENS} tokens differ, during and after {gap:.0f} s of sleep"
    return held(NAME, wrong, 0, shown, "0 differ", ADVICE)


async def _answer(model: LanguageModel, prompt: list[int]) -> list[int]:
    options = GenerationOptions(max_tokens=TOKENS, ignore_eos=True, top_k=0, seed=1)
    async with aclosing(model.generate(prompt, options)) as stream:
        return [record.token_id async for record in stream]


def seconds_asleep() -> float:
    """Seconds of sleep since the machine was started: one clock counts during sleep, the other does not."""
    through = time.CLOCK_MONOTONIC if sys.platform == "darwin" else time.CLOCK_BOOTTIME
    return time.clock_gettime(through) - time.monotonic()
