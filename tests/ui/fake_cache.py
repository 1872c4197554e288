"""The part of the fake workbench that is the cache: what the test says it holds."""

from __future__ import annotations

from dataclasses import replace

from tests.ui.fake_base import FakeBase
from ui import CacheCheck, CacheView, EdgeView

HELD = CacheView(
    edges=4,
    tokens=313,
    bytes=14_400_000,
    budget=2_000_000_000,
    leases=2,
    leased_bytes=1_400_000,
    hits=7,
    misses=2,
    pins=0,
    working_bytes=0,
    found=312,
    ended="the text goes on otherwise here",
    largest=(EdgeView(" in April?", 40, 1_840_000, 1), EdgeView("<b>rains</b>\x1b[31m", 12, 552_000, 0, "poet × 0.5")),
)


class FakeCache(FakeBase):
    """`trie` is what it shows (None: no engine runs), `check` what a comparison finds."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: CacheView | None = HELD
        self.check = CacheCheck(3.1e-6, 313, 49_152, same_first=True)

    def cache(self, session_id: int) -> CacheView | None:
        self.calls.append(("cache", session_id))
        return self.trie

    async def clear_cache(self) -> None:
        self._note("clear_cache")
        assert self.trie is not None
        self.trie = replace(self.trie, edges=0, tokens=0, bytes=0, leases=0, largest=(), pins=0, kept=None, ended="")

    async def keep_path(self, session_id: int, keep: bool) -> None:
        self._note("keep_path", session_id, keep)
        assert self.trie is not None
        self.trie = replace(self.trie, pins=int(keep), kept=312 if keep else None)

    async def check_uncached(self, session_id: int) -> CacheCheck:
        self._note("check_uncached", session_id)
        await self._pass()
        return self.check
