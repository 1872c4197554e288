"""The engine of the second model of a comparison, which ends after it unless it is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import runtime  # its names are imported at their first use: the window opens without them
from app.supervisor import Supervisor
from runtime import RuntimeFault

if TYPE_CHECKING:
    from ui import ComparisonChoice


class ComparisonEngine:
    """Owns at most one engine process beside the supervisor's. All members belong to the window's loop.

    Args:
        first: The supervisor of the model in use, whose start options this engine gets too.
    """

    def __init__(self, first: Supervisor) -> None:
        self._first = first
        self._held: Supervisor | None = None
        self._key: tuple[str, ...] = ()
        self._on_progress: Callable[[str], None] = lambda _words: None
        self.keeps = False

    def runs(self, choice: ComparisonChoice) -> bool:
        return self._held is not None and self._held.running is not None and self._key == _key(choice)

    async def model(self, choice: ComparisonChoice, on_progress: Callable[[str], None]) -> runtime.LanguageModel:
        """The second model, loaded if necessary; another one that was kept ends first.

        Raises:
            RuntimeFault: It cannot be loaded.
        """
        self._on_progress = on_progress
        if self._held is None or self._key != _key(choice):
            await self.close()
            held = self._first.beside(choice.source, choice.backend, _options(choice))
            held.subscribe(lambda: self._on_progress(held.reason) if held.reason else None)
            self._held, self._key = held, _key(choice)
        return await self._held.model()

    async def died(self, model: runtime.LanguageModel) -> None:
        """Reports that a request to `model` found its engine dead."""
        if self._held is not None:
            await self._held.died(model)

    async def close(self, within: float | None = None) -> None:
        """Ends it, within 2 s or `within` seconds."""
        held, self._held = self._held, None
        if held is not None:
            await held.close(within)


def _options(choice: ComparisonChoice) -> dict[str, str]:
    found = {"dtype": choice.dtype, "weights": choice.weights}
    return {name: value for name, value in found.items() if value}


def room_for(choice: ComparisonChoice, tokens: int) -> runtime.Fit | None:
    """The memory that the second model needs for a text of `tokens`; None if that is not known. Blocking, any thread."""
    shelf = runtime.ModelShelf()
    try:
        entry, config = shelf.find(choice.source), shelf.config(choice.source)
    except RuntimeFault:  # a folder off the shelf, or removed: loading reports it
        return None
    backend = runtime.default_backend() if choice.backend == "auto" else choice.backend
    if not entry.weights:
        return None
    options = runtime.LoadOptions.from_mapping(_options(choice))
    return runtime.estimate_fit(config, entry.weights, dtype=entry.dtype, backend=backend, context=tokens, options=options)


def _key(choice: ComparisonChoice) -> tuple[str, ...]:
    return choice.source, choice.backend, choice.dtype, choice.weights
