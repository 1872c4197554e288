"""Shared by the tests of similar turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from runtime import EngineDiedError, LanguageModel, LoadProgress, Pooling
from tests.app.workbench.scene import Engine, Scene
from ui import SimilarTurns

Told = list[tuple[str, int, int]]
QUESTIONS = ("where to?", "where to go?", "what is a monad?")


class Embedding(Engine):
    """The toy model, which records embedded texts, and can wait before a batch or end in it."""

    def __init__(self, **faults: Any) -> None:
        super().__init__(**faults)
        self.batches: list[list[str]] = []
        self.dies_at: int | None = None  # batches before it ends; once
        self.waits: asyncio.Event | None = None
        self.fault: BaseException | None = None

    async def __call__(
        self, source: str, backend: str, *, on_progress: Callable[[LoadProgress], None] | None = None, **options: Any
    ) -> LanguageModel:
        model = await super().__call__(source, backend, on_progress=on_progress, **options)
        return cast("LanguageModel", _Watched(model, self))


class _Watched:
    def __init__(self, model: LanguageModel, engine: Embedding) -> None:
        self._model, self._engine = model, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def embed(self, texts: Sequence[str], *how: Any, **more: Any) -> Any:
        engine = self._engine
        if engine.fault is not None:
            raise engine.fault
        if engine.dies_at == len(engine.batches):
            engine.dies_at = None
            raise EngineDiedError("the engine process has ended: signal 9 (SIGKILL)")
        engine.batches.append(list(texts))
        if engine.waits is not None:
            await engine.waits.wait()
        return await self._model.embed(texts, *how, **more)


async def talked(s: Scene, questions: Sequence[str] = QUESTIONS) -> int:
    """A session with these questions in a row, answered."""
    session_id = await s.new()
    for question in questions:
        await s.workbench.answers.send(session_id, question)
    return session_id


async def looked(s: Scene, session_id: int, node_id: int, pooling: Pooling = "mean", told: Told | None = None) -> SimilarTurns:
    def progress(*news: Any) -> None:
        if told is not None:
            told.append(news)

    return await s.workbench.similar.find(session_id, node_id, pooling, progress)


def running(s: Scene) -> LanguageModel:
    model = s.workbench.services.supervisor.running
    assert model is not None
    return model


async def cosines(s: Scene, chosen: str, texts: Sequence[str], pooling: Pooling = "mean") -> npt.NDArray[np.float32]:
    """The vectors of the model itself, each text alone."""
    rows = [(await running(s).embed([text], pooling))[0] for text in (chosen, *texts)]
    return np.array([row @ rows[0] for row in rows[1:]], np.float32)
