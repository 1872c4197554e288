"""Texts as vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import numpy as np

from runtime.adapters.uses import Adapters
from runtime.errors import UnsupportedFeatureError
from runtime.info import OnProgress
from runtime.model.texts import TextMembers
from runtime.numerics.pooling import Pooling, check_pooling, checked_texts
from runtime.options.checking import check_callback
from runtime.options.priority import Priority
from runtime.records import Float32, Int32
from runtime.scheduler.embedding import EmbedJob
from runtime.scheduler.ids import check_ids
from runtime.text.pieces import check_fits


class VectorMembers(TextMembers):
    """`embed` and its twin; see `runtime.members.vectors`."""

    async def embed(
        self,
        texts: Sequence[str],
        pooling: Pooling = "last",
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,
    ) -> Float32:
        """``(n, hidden)``."""
        job = await asyncio.to_thread(self._embedding, texts, pooling, adapters)
        check_callback(on_progress)
        if on_progress is not None:
            mailbox = self._mailbox()
            job.on_progress = lambda progress: mailbox.post(partial(on_progress, progress))
        self._submit_with_turn(job)
        try:
            return await asyncio.wrap_future(job.future)
        finally:
            self._cancel(job)

    def embed_sync(self, texts: Sequence[str], pooling: Pooling = "last", *, adapters: Adapters = None) -> Float32:
        """Blocking."""
        job = self._embedding(texts, pooling, adapters)
        self._engine.submit([job])
        try:
            return job.future.result()
        finally:
            self._cancel(job)

    def _embedding(self, texts: Sequence[str], pooling: Pooling, adapters: Adapters) -> EmbedJob:
        """Checked and tokenised, equal texts together."""
        pooling = check_pooling(pooling)
        numbers: dict[bytes, int] = {}
        paths: list[Int32] = []
        places: list[list[int]] = []
        for row, text in enumerate(checked_texts(texts)):
            path = self._path(row, text)
            number = numbers.setdefault(path.tobytes(), len(paths))
            if number == len(paths):
                paths.append(path)
                places.append([])
            places[number].append(row)
        nobody = np.empty(0, np.int32)
        routes = {self._route(path, adapters) for path in paths}
        if len(routes) > 1 or any(before for _, before in routes):
            raise UnsupportedFeatureError(
                "an activated adapter of the stack begins in the middle of a text: embed without it (adapters=(), or pop_lora)"
            )
        return EmbedJob(nobody, next(iter(routes))[0], Priority.BACKGROUND, paths=paths, places=places, pooling=pooling)

    def _path(self, row: int, text: str) -> Int32:
        info = self.info
        check_fits(self, text, stage=f"texts[{row}]")
        return check_ids(self.tokenize(text), vocab=info.vocab_size, context=info.context_length, stage=f"texts[{row}]")
