"""How single models are loaded where somebody chose so: remembered with each of them, over restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.workbench.refusals import stored
from runtime import LoadOptions, RuntimeFault
from storage import SessionStore, StoreError
from ui import LoadChoice, Refusal, translate

SETTING = "models"
_AS_SET = LoadChoice()


class LoadChoices:
    """By the model's name. All members belong to the window's loop.

    Args:
        store: Where they are saved.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._held: dict[str, LoadChoice] = {}

    async def load(self) -> None:
        """Reads them; what cannot be taken is left out."""
        try:
            held = await self._store.setting(SETTING)
        except StoreError:  # the settings, read from the same file, say so
            held = None
        found = held.items() if isinstance(held, Mapping) else ()
        choices = {str(name): _read(value) for name, value in found}
        self._held = {name: choice for name, choice in choices.items() if choice != _AS_SET}

    def of(self, name: str) -> LoadChoice:
        """What holds for a model alone."""
        return self._held.get(name, _AS_SET)

    async def keep(self, name: str, choice: LoadChoice) -> None:
        """From now on; what leaves all to the settings is forgotten.

        Raises:
            Refusal: It cannot be, or cannot be saved.
        """
        try:
            LoadOptions.from_mapping(options_of(choice))
        except (RuntimeFault, TypeError) as fault:
            raise Refusal(str(fault)) from fault
        others = {each: held for each, held in self._held.items() if each != name}
        wanted = others if choice == _AS_SET else {**others, name: choice}
        if wanted != self._held:
            await stored(self._store.set_setting(SETTING, {each: options_of(held) for each, held in wanted.items()}))
            self._held = wanted

    async def forget(self, name: str) -> None:
        """The model is gone."""
        await self.keep(name, _AS_SET)


def options_of(choice: LoadChoice) -> dict[str, Any]:
    """What it says, by the names of `LoadOptions`."""
    found: dict[str, Any] = {} if choice.context is None else {"context_length": choice.context}
    return found if choice.weights == "auto" else {**found, "weights": choice.weights}


def words_of(choice: LoadChoice) -> str:
    """For a row of the shelf; "" where it says nothing."""
    context = "" if choice.context is None else translate("Workbench", "{0:,} tokens").format(choice.context)
    weights = "" if choice.weights == "auto" else translate("Workbench", "{0} weights").format(choice.weights)
    return ", ".join(part for part in (context, weights) if part)


def _read(value: object) -> LoadChoice:
    known = {name: value[name] for name in ("context_length", "weights") if name in value} if isinstance(value, Mapping) else {}
    try:
        made = LoadOptions.from_mapping(known)
    except (RuntimeFault, TypeError):
        return _AS_SET
    return LoadChoice(made.context_length, made.weights)
