"""Elsewise's streams, as a program sees them: records out of `generate`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from benchmarks.clock import Lap
from benchmarks.findings import Case
from benchmarks.forwards import Watched
from benchmarks.measure import Ids
from benchmarks.ours import open_model
from runtime import GenerationOptions, SamplingOptions


class OurStreams(Watched):
    """A model in this process; a lap begins without a cache unless it says otherwise.

    Args:
        folder: The model.
        backend: Its backend's name.
        options: Of `LoadOptions`, beside those of every model here.
    """

    def __init__(self, folder: Path, backend: str, **options: Any) -> None:
        self._model = open_model(folder, backend, **options)
        super().__init__(self._model)
        self._runner = asyncio.Runner()

    @property
    def tokens_computed(self) -> int:
        """As the scheduler counts them."""
        return self._model.metrics().tokens_computed

    @property
    def weight_bytes(self) -> int:
        """That a token of one stream reads of linear modules (hf)."""
        backend: Any = self._model._engine.backend  # type: ignore[attr-defined]  # noqa: SLF001  # nothing public lies so deep
        return int(backend.weight_bytes)

    def decode(self, prompts: Sequence[Ids], n: int, *, top_k: int = 10, warm: bool = False) -> Lap:
        """`n` greedy tokens after each prompt, all at once, with records of `top_k` alternatives.

        The clock starts when the last of the streams has its first token. With `warm`, the cache stays as it is.
        """
        if not warm:
            self._model.clear_cache()
        return self._runner.run(self._decode(prompts, n, top_k))

    def score(self, ids: Ids) -> Lap:
        """Records of all tokens of a text."""
        self._model.clear_cache()
        watch = self._watch()
        watch.start()
        records = self._runner.run(self._model.score(ids))
        return watch.lap(len(records))

    def close(self) -> None:
        """Ends the owner thread and the loop."""
        self._model.close()
        self._runner.close()

    async def _decode(self, prompts: Sequence[Ids], n: int, top_k: int) -> Lap:
        greedy = SamplingOptions(temperature=0.0)
        options = GenerationOptions(max_tokens=n, sampling=greedy, ignore_eos=True, seed=0, resolve=False, top_k=top_k)
        watch = self._watch()
        answers: list[list[int]] = [[] for _ in prompts]
        before = 0  # tokens that came before the clock ran

        async def stream(prompt: Ids, answer: list[int]) -> None:
            nonlocal before
            async with aclosing(self._model.generate(prompt, options)) as records:
                async for record in records:
                    answer.append(record.token_id)
                    if len(answer) == 1 and all(answers):
                        before = sum(map(len, answers))
                        watch.start()

        await asyncio.gather(*map(stream, prompts, answers))
        return watch.lap(len(prompts) * n - before, answers)


def our_streams(case: Case) -> OurStreams:
    """The one of a case."""
    return case.loaded.get(OurStreams, lambda: OurStreams(case.folder, case.backend))
