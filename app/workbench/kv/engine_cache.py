"""The KV cache of the running model, as the window shows it (`ui.port.CacheCommands`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct

from app.supervisor import Supervisor
from app.workbench.prompt.prompt import check_tokens
from app.workbench.prompt.vocabulary import Vocabulary
from app.workbench.refusals import refusing
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.session_adapters import AdaptedModel, Adapters, in_words
from app.workbench.windows import Windows
from runtime import AdapterInfo, EdgeReport, LanguageModel
from ui import QT_TRANSLATE_NOOP, CacheCheck, CacheView, EdgeView, Refusal, translate

NO_MODEL: Final = QT_TRANSLATE_NOOP(
    "Workbench", "no model runs, so nothing is cached; send a message, or choose a model, and it starts"
)
SHOWN_EDGES: Final = 5
TAIL_TOKENS: Final = 6
MOST_CHECKED: Final = 2048  # tokens; computed uncached in one forward, which other requests cannot interrupt


class _Kept(Struct, frozen=True):
    """A pin: its engine, its number, and the number of tokens it holds."""

    model: LanguageModel
    pin: int
    tokens: int


@dataclass(eq=False, repr=False)
class EngineCache:
    """Shows and clears the cache, and pins paths in it (`ui.port.CacheCommands`)."""

    _supervisor: Supervisor
    _sessions: OpenSessions
    _vocabulary: Vocabulary
    _adapters: Adapters  # loads a session's adapters
    _windows: Windows  # show the size of the cache
    _kept: dict[int, _Kept] = field(default_factory=dict, init=False)  # by session

    def view(self, session_id: int) -> CacheView | None:
        model = self._supervisor.running
        if model is None or not model.has("kv"):
            return None
        report, kept = model.cache_report(), self._kept.get(session_id)
        return CacheView(
            edges=report.edges,
            tokens=report.tokens,
            bytes=report.bytes,
            budget=report.budget,
            leases=report.leases,
            leased_bytes=report.leased_bytes,
            hits=report.hits,
            misses=report.misses,
            pins=report.pins,
            working_bytes=report.working_bytes,
            found=report.last_prefix,
            ended=report.last_reason,
            kept=kept.tokens if kept is not None and kept.model is model and report.pins > 0 else None,
            largest=tuple(self._edge(edge, model.info.adapters) for edge in report.largest[:SHOWN_EDGES]),
        )

    async def clear(self) -> None:
        """Clears the cache, pins included.

        Raises:
            Refusal: No model runs, or its engine ended.
        """
        model = self._running()
        for kept in self._kept.values():
            if kept.model is model:
                model.unpin(kept.pin)
        self._kept.clear()
        async with refusing(self._supervisor, model):
            await model.clear_cache_async()
        self._windows.refresh_status()

    async def keep_path(self, session_id: int, keep: bool) -> None:  # a state, not an option
        """Pins the path shown, or unpins it.

        Raises:
            Refusal: No model runs, nothing of the path is in memory, or its engine ended.
        """
        model = self._running()
        kept = self._kept.pop(session_id, None)
        mine = kept if kept is not None and kept.model is model else None
        async with refusing(self._supervisor, model):
            if keep:
                await self._pin(session_id, model, mine)
            elif mine is not None:
                await model.unpin_async(mine.pin)
        self._windows.refresh_status()

    async def _pin(self, session_id: int, model: LanguageModel, before: _Kept | None) -> None:
        ids, adapted = await self._path(session_id, model)
        pin = before.pin if before is not None else None
        pinned = await model.pin_async(ids, pin, adapters=adapted.adapters)
        if not pinned.tokens:
            await model.unpin_async(pinned.pin)
            raise Refusal(translate("Workbench", "nothing of this path is in memory yet; send a message first"))
        self._kept[session_id] = _Kept(model, pinned.pin, pinned.tokens)

    async def check_uncached(self, session_id: int) -> CacheCheck:
        """Compares the log-probabilities after the path with those computed without the cache.

        Raises:
            Refusal: No model runs, the path is empty or another tokenizer's, or the engine ended.
        """
        model = self._running()
        async with refusing(self._supervisor, model):
            ids, adapted = await self._path(session_id, model)
            ids = ids[:MOST_CHECKED]
            cached = await model.next_token_logprobs(ids, adapters=adapted.adapters)
            anew = await model.next_token_logprobs_uncached_async(ids, adapters=adapted.adapters)
        both = np.isfinite(cached) & np.isfinite(anew)  # padding of the vocabulary is minus infinity in both
        difference = np.abs(cached[both].astype(np.float64) - anew[both].astype(np.float64))
        return CacheCheck(
            difference=float(difference.max(initial=0.0)),
            tokens=len(ids),
            entries=int(both.sum()),
            same_first=bool(cached.argmax() == anew.argmax()),
        )

    def _running(self) -> LanguageModel:
        model = self._supervisor.running
        if model is None:
            raise Refusal(translate("Workbench", NO_MODEL))
        return model

    async def _path(self, session_id: int, model: LanguageModel) -> tuple[list[int], AdaptedModel]:
        session = await self._sessions.whole(session_id)
        path = session.tree.path(session.tip)
        ids = session.path_ids(path)
        if not ids:
            raise Refusal(translate("Workbench", "this session has no tokens yet; send a message first"))
        check_tokens(model, session, path)
        return ids, await self._adapters.adapted(session, model)

    def _edge(self, edge: EdgeReport, adapters: Sequence[AdapterInfo]) -> EdgeView:
        data = b"".join(self._vocabulary.bytes_of(token) for token in edge.tail[-TAIL_TOKENS:])
        return EdgeView(data.decode(errors="replace"), edge.tokens, edge.bytes, edge.leases, in_words(edge.stack, adapters))
