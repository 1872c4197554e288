"""A session's prefill: scores and KV of new tokens, with counts of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.adapters.uses import Adapters
from runtime.info import OnProgress, PromptProgress
from runtime.records import TokenRun

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel


@dataclass(slots=True)
class Work:
    """What a prefill cost and gave.

    Attributes:
        computed: Tokens pushed through the model.
        run: The new tokens and their scores; None where none were asked for.
    """

    computed: int = 0
    run: TokenRun | None = None


class _Counted:
    """Hears the progress of one request, and passes it on."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self.computed = 0

    def __call__(self, progress: PromptProgress) -> None:
        self.computed = progress.computed
        if self._on_progress is not None:
            self._on_progress(progress)


async def fill(
    model: LanguageModel,
    ids: Sequence[int],
    start: int,
    *,
    top_k: int | None,
    adapters: Adapters,
    on_progress: OnProgress | None,
) -> Work:
    """Brings the KV of `ids` into place, with the scores of the tokens from `start` on and what follows the last one.

    Args:
        model: Where.
        ids: The whole path.
        start: Its first new token.
        top_k: Alternatives recorded; None scores nothing.
        adapters: Under which.
        on_progress: Hears how far it is.
    """
    scoring, keeping = _Counted(on_progress), _Counted(on_progress)
    run = None
    if top_k is not None and start < len(ids):
        run = await model.score_run(ids, top_k, start, adapters=adapters, on_progress=scoring)
    if not scoring.computed:  # all scores were remembered: the KV, its checkpoint or the last vector may not be
        await model.cache_kv_async(ids, adapters=adapters, on_progress=keeping)
    return Work(scoring.computed + keeping.computed, run)
