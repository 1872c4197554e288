"""Elsewise's branches and beams, as a program sees them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from benchmarks.clock import Lap, Stopwatch
from benchmarks.forwards import Watched
from benchmarks.ideal import distinct_prefixes
from benchmarks.measure import Ids
from benchmarks.ours import open_model
from runtime import BeamOptions, GenerationOptions, SamplingOptions


class OurBranches(Watched):
    """A model in this process; every lap begins without a cache, and the prompt is a part of it.

    Args:
        folder: The model.
        backend: Its backend's name.
    """

    def __init__(self, folder: Path, backend: str) -> None:
        self._model = open_model(folder, backend)
        super().__init__(self._model)
        self._runner = asyncio.Runner()
        self.computed = 0  # tokens that the last lap pushed through the model
        self.needed = 0  # the fewest that its branches need, see `benchmarks.ideal`

    def branches(self, prompt: Ids, n: int, tokens: int) -> Lap:
        """`tokens` drawn in each of `n` continuations of the prompt, with records of ten alternatives."""
        sampling = SamplingOptions(temperature=1.0)
        options = GenerationOptions(max_tokens=tokens, sampling=sampling, ignore_eos=True, seed=0, resolve=False)

        async def main() -> list[list[int]]:
            answers: list[list[int]] = [[] for _ in range(n)]
            async with aclosing(self._model.continue_many(prompt, n, options)) as records:
                async for branch, record in records:
                    answers[branch].append(record.token_id)
            return answers

        watch = self._begin()
        answers = self._runner.run(main())
        lap = self._end(watch.lap(sum(map(len, answers))))
        self.needed = distinct_prefixes([*prompt, *answer[:-1]] for answer in answers)  # the last ones are not pushed
        return lap

    def beams(self, prompt: Ids, width: int, tokens: int) -> Lap:
        """Beam search for hypotheses of `tokens`."""
        options = BeamOptions(width, tokens, ignore_eos=True)
        watch = self._begin()
        found = self._runner.run(self._model.beam_generate(prompt, options))
        return self._end(watch.lap(width * tokens, [one.ids for one in found]))

    def close(self) -> None:
        """Ends the owner thread and the loop."""
        self._model.close()
        self._runner.close()

    def _begin(self) -> Stopwatch:
        self._model.clear_cache()
        self.computed = -self._model.metrics().tokens_computed
        watch = self._watch()
        watch.start()
        return watch

    def _end(self, lap: Lap) -> Lap:
        self._model.prefix_match([0])  # after the last step, so that it is counted
        self.computed += self._model.metrics().tokens_computed
        return lap
