"""The fake model's branching members: what they answer follows from the arguments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from runtime import BeamOptions, BeamStep, Branches, Finish, GenerationOptions, Hypothesis, InvalidRequestError
from runtime.adapters.uses import Adapters
from runtime.beams import OnStep
from runtime.branches import records_of
from runtime.info import OnProgress, PromptProgress
from runtime.records import TokenRecord, TokenRun
from tests.runtime.process.fake_answers import run_of

ENDLESS = 3  # as the first id


class FakeBranching:
    """Branch k says k, k + 1, ...; one that begins with `ENDLESS` never ends; prompt [9] is refused, [8] fails in the end."""

    cancelled: int
    generated: int

    def continue_many(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRecord]:
        runs = self.continue_many_runs(ids, n, options, on_progress=on_progress)
        return Branches(records_of(runs), runs.drop)

    def continue_many_runs(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRun]:
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        dropped: set[int] = set()
        return Branches(self._say([list(ids)] * n, options, dropped), dropped.add)

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: GenerationOptions | Sequence[GenerationOptions | None] | None = None,
    ) -> Branches[TokenRecord]:
        runs = self.generate_many_runs(prompts, options)
        return Branches(records_of(runs), runs.drop)

    def generate_many_runs(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: GenerationOptions | Sequence[GenerationOptions | None] | None = None,
    ) -> Branches[TokenRun]:
        dropped: set[int] = set()
        paths = [[ord(letter) - 97 for letter in each] if isinstance(each, str) else list(each) for each in prompts]
        first = options if options is None or isinstance(options, GenerationOptions) else options[0]
        return Branches(self._say(paths, first, dropped), dropped.add)

    async def _say(
        self, paths: list[list[int]], options: GenerationOptions | None, dropped: set[int]
    ) -> AsyncGenerator[tuple[int, TokenRun], None]:
        for i, path in enumerate(paths):
            if path == [9]:
                raise InvalidRequestError(f"prompt {i}: nine is refused")
        last = (options and options.max_tokens) or 4
        try:
            for at in range(1 << 30):
                said = False
                for branch, path in enumerate(paths):
                    endless = path[0] == ENDLESS
                    if branch not in dropped and (at < last or endless):
                        said = True
                        self.generated += 1
                        yield branch, run_of([(branch + at) % 26], finish=Finish.LENGTH if at == last - 1 else Finish.NONE)
                if not said:
                    break
                await asyncio.sleep(0.001)
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        if [8] in paths:
            error = InvalidRequestError("eight fails in the end")
            error.add_note(f"prompts {paths.index([8])} ended by InvalidRequestError: eight fails in the end")
            raise error

    async def beam_generate(
        self,
        ids: Sequence[int],
        options: BeamOptions | None = None,
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
    ) -> list[Hypothesis]:
        options = (options or BeamOptions()).check(28)
        for step in range(1, 4):
            if on_step is not None:
                on_step(BeamStep(step, (0, 0), (step, len(ids)), (-0.5, -1.5), 0))
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        return [Hypothesis(run_of([i, 1], finish=Finish.EOS), -1.5 * i, -0.75 * i) for i in range(options.width)]
