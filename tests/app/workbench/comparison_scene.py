"""Shared by the tests of a comparison with a second model."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from runtime import (
    EngineDiedError,
    LanguageModel,
    LoadProgress,
    load,
)
from tests.app.workbench.scene import Engine, Scene
from ui import ComparisonChoice, PathComparison

SAME = ComparisonChoice("x", "fake", "x on fake", adapters=())
TINY = ComparisonChoice("tiny", "hf", "Tiny llama")
Told = list[tuple[str, int, int]]


class Engines(Engine):
    """The first engine is the toy; others by their source. `open` are those that are not closed yet."""

    def __init__(self, **second: Any) -> None:
        super().__init__()
        self.second = second
        self.started: list[tuple[str, str, Mapping[str, Any]]] = []
        self.open: list[LanguageModel] = []
        self.dies = False  # the second one, when it has to score
        self.waits: asyncio.Event | None = None

    async def __call__(
        self, source: str, backend: str, *, on_progress: Callable[[LoadProgress], None] | None = None, **options: Any
    ) -> LanguageModel:
        self.started.append((source, backend, options))
        first = len(self.started) == 1
        if source in self.second:
            fault = self.second[source]
            if isinstance(fault, BaseException):
                raise fault
            model: LanguageModel = await asyncio.to_thread(load, fault, backend="hf")
        else:
            model = await super().__call__(source, backend, on_progress=on_progress, **options)
        if first:
            return model
        return cast("LanguageModel", _Second(model, self))


class _Second:
    def __init__(self, model: LanguageModel, engines: Engines) -> None:
        self.model, self._engines = model, engines
        engines.open.append(model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def score_run(self, *ids: Any, **how: Any) -> Any:
        if self._engines.dies:
            raise EngineDiedError("the engine process has ended: signal 9 (SIGKILL)")
        if self._engines.waits is not None:
            await self._engines.waits.wait()
        return await self.model.score_run(*ids, **how)

    async def close_async(self, *, within: float | None = None) -> None:
        self._engines.open.remove(self.model)
        await self.model.close_async(within=within)


async def compared(s: Scene, session_id: int, choice: ComparisonChoice, told: Told | None = None, **how: Any) -> PathComparison:
    def progress(*news: Any) -> None:
        if told is not None:
            told.append(news)

    return await s.workbench.comparison.compare(session_id, choice, progress, **how)


def everything(path: Path) -> list[Any]:
    """All rows of the file, in every table."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        names = [row[0] for row in conn.execute("select name from sqlite_master where type = 'table' order by name")]
        return [(name, conn.execute(f'select * from "{name}"').fetchall()) for name in names]  # the file's own names
