"""The part of the fake workbench that is about a second model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from runtime import ComparedSide, ModelComparison, TokenRun
from tests.ui.fake_base import FakeBase
from ui import NoRoomRefusal, OnCompared, PathComparison, SecondChoice

QWEN = SecondChoice("qwen3", "hf", "Qwen3 <b>0.6B</b>", "0.6B · 4 bit · 335 MB")


class FakeSecond(FakeBase):
    """Compares in three steps; the second model's numbers are the first's, moved by `moved` nats in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = [
            SecondChoice("smollm2", "mlx", "SmolLM2 on mlx", problem="mlx is not here"),
            SecondChoice("smollm2", "hf", "SmolLM2 in bfloat16", adapters=(), dtype="bfloat16"),
            QWEN,
        ]
        self.keeps_second = False
        self.short_of_room = False
        self.by_bytes = False
        self.kl_from = 0
        self.wanted_all: list[bool] = []
        self.moved = (0.0, 0.5, -0.5, 1.5, -1.5, 4.0, -4.0)

    async def second_choices(self, session_id: int) -> Sequence[SecondChoice]:
        self._note("second_choices", session_id)
        return self.seconds

    async def compare_with(
        self, session_id: int, choice: SecondChoice, progress: OnCompared, *, anyway: bool = False, kl_of_all: bool = False
    ) -> PathComparison:
        self._note("compare_with", session_id, choice.source, anyway)
        self.wanted_all.append(kl_of_all)
        if self.short_of_room and not anyway:
            raise NoRoomRefusal("Qwen3 would take about 4.2 GB beside the model in use; 1.1 GB are free")
        progress("loading Qwen3", 0, 0)
        for done in range(3):
            await self._pass()
            progress("comparing", done + 1, 3)
        found = self.comparison(session_id)
        return replace(found, kl_from=0) if kl_of_all else found

    async def keep_second(self, keep: bool) -> None:
        self._note("keep_second", keep)
        self.keeps_second = keep

    def comparison(self, session_id: int) -> PathComparison:
        """Every token a span, and every third place disagreed on; by bytes two tokens of the first model are one span."""
        turns = self.views[session_id].turns
        run = TokenRun.concat([turn.run for turn in turns])
        n = len(run)
        moved = np.resize(np.array(self.moved, np.float32), n)
        columns = {name: getattr(run, name).copy() for name in ("logprob", "rank", "top_ids", "top_logprobs")}
        tops = tuple(b" maybe" if i % 3 == 0 else b" same" for i in range(n))
        width = 2 if self.by_bytes else 1
        borders = np.append(np.arange(0, n, width), n).astype(np.int64)
        left = ComparedSide("SmolLM2", run, borders, (b" same",) * n)
        fields = {name: getattr(run, name) for name in ("ids", "token_bytes", "texts", "entropy", "covered_mass")}
        fields |= {name: getattr(run, name) for name in ("origin", "finish", "draw")}
        other = TokenRun(**fields, **(columns | {"logprob": columns["logprob"] + moved}))
        right = ComparedSide("Qwen3", other, borders, tops)
        kl = None if self.by_bytes else np.where(np.arange(n) < self.kl_from, np.nan, np.linspace(0, 2, n))
        found = ModelComparison(left, right, "bytes" if self.by_bytes else "tokens", kl)
        spans, at = {}, 0
        for turn in turns:
            spans[turn.node_id] = np.arange(at, at + len(turn.run)) // width
            at += len(turn.run)
        return PathComparison(session_id, "SmolLM2 135M Instruct", QWEN.label, found, spans, n, self.kl_from)
