"""Progress of long calls: `progress=True` draws a tqdm bar, a callable gets the count done and the total."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from runtime.beams import BeamStep, OnStep
from runtime.branches import Branches
from runtime.info import OnProgress, PromptProgress
from runtime.options.checking import check_callback
from runtime.records import TokenRun

if TYPE_CHECKING:  # imported late: the window opens without the modules that load a model
    from runtime.loading.progress import LoadProgress, OnLoad

OnCount = Callable[[int, int | None], None]  # done, and the total where it is known
ShowProgress = bool | OnCount


@contextmanager
def reporting(progress: ShowProgress, unit: str) -> Iterator[OnCount]:
    """A callback for the count done and the total; a bar is shown while the block runs."""
    if progress is not True:
        check_callback(progress or None, "progress")
        yield progress if callable(progress) else lambda _done, _total: None
        return
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # has no types
        monitor_interval = 0  # without tqdm's monitor thread

    with Bar(unit=unit) as bar:

        def say(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield say


@contextmanager
def reporting_prompt(progress: ShowProgress, unit: str, on_progress: OnProgress | None) -> Iterator[OnProgress | None]:
    """An `on_progress` that reports to `progress` and to `on_progress`."""
    check_callback(on_progress)
    with reporting(progress, unit) as say:

        def hear(heard: PromptProgress) -> None:
            say(heard.done, heard.total)
            if on_progress is not None:
                on_progress(heard)

        yield hear if progress else on_progress


@contextmanager
def reporting_load(progress: ShowProgress, on_progress: OnLoad | None) -> Iterator[OnLoad | None]:
    """An `on_progress` of a load that reports to both; `progress` gets only the stage that counts tensors."""
    with reporting(progress, "tensor") as say:

        def hear(heard: LoadProgress) -> None:
            if heard.total and heard.stage == "reading":
                say(heard.done, heard.total)
            if on_progress is not None:
                on_progress(heard)

        yield hear if progress else on_progress


@contextmanager
def reporting_steps(progress: ShowProgress, most: int | None, on_step: OnStep | None) -> Iterator[OnStep | None]:
    """An `on_step` of a beam search that reports to `progress` and to `on_step`."""
    check_callback(on_step, "on_step")
    with reporting(progress, "step") as say:

        def hear(step: BeamStep) -> None:
            say(step.step, most)
            if on_step is not None:
                on_step(step)

        yield hear if progress else on_step


def reporting_ends(runs: Branches[TokenRun], progress: ShowProgress, total: int) -> Branches[TokenRun]:
    """The same branches, with the number of ended ones reported to `progress`."""

    async def read() -> AsyncGenerator[tuple[int, TokenRun], None]:
        done = 0
        with reporting(progress, "answer") as say:
            say(done, total)
            async with aclosing(runs):
                async for branch, run in runs:
                    yield branch, run
                    if len(run) and run.finish[-1]:
                        done += 1
                        say(done, total)

    return Branches(read(), runs.drop) if progress else runs
