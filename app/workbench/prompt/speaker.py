"""Who answers: a model under the adapters of one answer, which it keeps to its end."""

from __future__ import annotations

from dataclasses import dataclass

from runtime import LanguageModel

Stack = tuple[tuple[str, float], ...]  # (name in the engine, scale), in order


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model, the adapters asked for (None: the model's own stack), and what their numbers are filed under."""

    model: LanguageModel
    adapters: Stack | None
    numbers: str

    @classmethod
    def of(cls, model: LanguageModel, adapters: Stack | None = None) -> Speaker:
        """The model under these adapters.

        Raises:
            AdapterError: One of them is not loaded.
        """
        return cls(model, adapters, model.info.numbers_under(adapters))
