"""Presets: options under a name, in the settings of the data folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from app.workbench.refusals import stored
from app.workbench.setup.values import read_options
from runtime import GenerationOptions, clean_text
from storage import SessionStore, StoreError
from ui import Refusal

SETTING = "presets"
MODELS_OWN, GREEDY = "model's own", "greedy"
BUILT_IN: Mapping[str, Mapping[str, Any]] = MappingProxyType({MODELS_OWN: {}, GREEDY: {"temperature": 0.0}})
LONGEST_NAME = 60  # characters


class Presets:
    """Those that were saved and those that came with Elsewise, of which "" is what holds where nobody chose.

    Args:
        store: Where they are saved.
        own: Elsewise's own.
    """

    def __init__(self, store: SessionStore, own: GenerationOptions) -> None:
        self._store = store
        self.own = own
        self._saved: dict[str, dict[str, Any]] | None = None
        self.notes: list[str] = []
        self.default = ""  # of sessions that chose none

    async def load(self) -> None:
        """Reads them once; what cannot be taken is left out, with a note."""
        if self._saved is not None:
            return
        try:
            held = await self._store.setting(SETTING)
        except StoreError as fault:
            held, self.notes = None, [f"presets cannot be read: {fault}"]
        saved: dict[str, dict[str, Any]] = {}
        for name, options in held.items() if isinstance(held, Mapping) else ():
            notes: list[str] = []
            if isinstance(name, str) and name.strip() and name not in BUILT_IN:
                saved[name] = read_options(options, notes)
            self.notes += [f"preset {name!s:.40}: {note}" for note in notes]
        self._saved = saved

    @property
    def names(self) -> dict[str, bool]:
        """Every preset but Elsewise's own; whether it can be deleted."""
        return {**dict.fromkeys(BUILT_IN, False), **dict.fromkeys(sorted(self._saved or {}), True)}

    def options(self, name: str) -> GenerationOptions:
        """What a preset says; Elsewise's own for a name that nobody has (any more)."""
        name = name or self.default
        said = BUILT_IN.get(name, (self._saved or {}).get(name))
        return self.own if said is None else GenerationOptions.from_mapping(said)

    def check(self, name: str) -> None:
        """Refuses a name that nobody has."""
        if name and name not in self.names:
            raise Refusal(f"there is no preset {name!r:.80} any more")

    async def save(self, name: str, options: Mapping[str, Any]) -> str:
        """Saves options under a name; returns it as it is kept."""
        name = " ".join(clean_text(name).split())
        if not name or len(name) > LONGEST_NAME:
            raise Refusal(f"a preset's name has 1 to {LONGEST_NAME} characters, not {len(name)}")
        if name in BUILT_IN:
            raise Refusal(f"{name!r} comes with Elsewise; choose another name")
        await self._write({**(self._saved or {}), name: dict(options)})
        return name

    async def delete(self, name: str) -> None:
        """Forgets one that was saved."""
        if name in BUILT_IN or not name:
            raise Refusal("that one comes with Elsewise; only saved presets can be deleted")
        self.check(name)
        await self._write({held: options for held, options in (self._saved or {}).items() if held != name})

    async def _write(self, saved: dict[str, dict[str, Any]]) -> None:
        await stored(self._store.set_setting(SETTING, saved))
        self._saved = saved
