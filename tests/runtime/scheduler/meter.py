"""Measures the memory that a model really holds after every backend call: the arrays themselves, not the cache's counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel
from runtime.scheduler.kv.workspace import SlotRun
from tests.fakes import engine_of

WATCHED = ("resize", "load", "compute", "begin", "take", "take_many", "split", "retain", "close")
MADE = ("take", "take_many", "split")  # their results are not referenced elsewhere yet


class Meter:
    """The most bytes held at any moment, over all packs, payloads (also copied ahead), scores and vectors (also pinned)."""

    def __init__(self, model: LanguageModel) -> None:
        self._cache = engine_of(model).scheduler.cache
        self.most = 0
        self.over: list[str] = []  # the calls after which more than the budget was held
        self.done: set[str] = set()

    def now(self) -> int:
        """Bytes of every array that is held; an array referenced twice counts once."""
        found: dict[int, int] = {}
        for workspace in self._cache.workspaces.open:
            weigh(vars(workspace.pack), found)
        for node in self._cache.trie.nodes():
            weigh(node.payload, found)
            weigh(node.scores, found)
        weigh(vars(self._cache.vectors), found)
        weigh(self._cache.copied_tails, found)
        return sum(found.values())

    def note(self, what: str, *more: Any) -> None:
        """Records a moment at which `more` is alive beside the model's arrays."""
        found: dict[int, int] = {}
        weigh(more, found)
        self.done.add(what)
        total = self.now() + sum(found.values())
        self.most = max(self.most, total)
        if total > self._cache.kv_budget.budget:
            self.over.append(f"{what}: {total:,} of {self._cache.kv_budget.budget:,}")


def weigh(thing: Any, found: dict[int, int]) -> None:
    """Bytes by buffer of all the arrays in `thing`, a view counted with the whole buffer that it keeps alive."""
    if isinstance(thing, np.ndarray):
        while isinstance(thing.base, np.ndarray):
            thing = thing.base
        found[id(thing)] = int(thing.nbytes)
    elif hasattr(thing, "untyped_storage"):
        found[thing.untyped_storage().data_ptr()] = int(thing.untyped_storage().nbytes())
    elif type(thing).__module__.startswith("mlx.core") and hasattr(thing, "nbytes"):
        found[id(thing)] = int(thing.nbytes)
    elif isinstance(thing, dict):
        for each in thing.values():
            weigh(each, found)
    elif isinstance(thing, list | tuple | set):
        for each in thing:
            weigh(each, found)
    elif is_dataclass(thing) and not isinstance(thing, SlotRun):  # a SlotRun only refers to a pack's slots
        for each in fields(thing):
            weigh(getattr(thing, each.name), found)
    elif type(thing).__name__ in ("SlotLayer", "HybridSlotLayer", "SlotCache", "CacheList"):
        weigh({name: value for name, value in vars(thing).items() if name in ("keys", "values", "caches")}, found)


@contextmanager
def metered(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    """Measures after every call of the backend, and whenever a buffer exists twice."""
    backend, meter = engine_of(model).backend, Meter(model)

    def watch(name: str, done: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            made = done(*args, **kwargs)
            meter.note(name, made if name in MADE else None)
            return made

        return watched

    def growing(done: Any) -> Any:
        def resized(buffer: Any, *args: Any) -> Any:
            made = done(buffer, *args)
            meter.note("a buffer there twice", made)
            return made

        return resized

    for name in WATCHED:
        monkeypatch.setattr(backend, name, watch(name, getattr(backend, name)))

    def preparing(prepare: Any) -> Any:
        def prepared(*args: Any) -> Any:
            begin = prepare(*args)
            return None if begin is None else watch("begin, prepared", begin)

        return prepared

    monkeypatch.setattr(backend, "prepare", preparing(backend.prepare))
    if backend.info.backend in ("hf", "mlx"):
        module = __import__(f"runtime.backends.{backend.info.backend}.cache", fromlist=["resized"])
        monkeypatch.setattr(module, "resized", growing(module.resized))
    yield meter
    monkeypatch.undo()
