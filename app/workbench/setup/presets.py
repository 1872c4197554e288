"""Presets: named options, saved in the data folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from app.workbench.refusals import stored
from app.workbench.setup.values import read_options
from runtime import GenerationOptions, RuntimeFault, clean_text
from storage import SessionStore, StoreError
from ui import QT_TRANSLATE_NOOP, Refusal, in_window, translate

SETTING = "presets"
OWN, MODELS_OWN, GREEDY = (  # the window shows them translated
    QT_TRANSLATE_NOOP("Presets", "Elsewise's own"),
    QT_TRANSLATE_NOOP("Presets", "model's own"),
    QT_TRANSLATE_NOOP("Presets", "greedy"),
)
BUILT_IN: Mapping[str, Mapping[str, Any]] = MappingProxyType({MODELS_OWN: {}, GREEDY: {"temperature": 0.0}})  # beside OWN
LONGEST_NAME = 60  # characters


@dataclass(eq=False, repr=False)
class Presets:
    """Saved and built-in presets; the name "" means the settings' choice."""

    _store: SessionStore
    own: GenerationOptions  # Elsewise's own options, the default if the settings choose none
    _saved: dict[str, dict[str, Any]] | None = field(default=None, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    chosen: str = field(default="", init=False)  # the preset that the settings choose

    async def load(self) -> None:
        """Reads them once; invalid ones are left out, with a note."""
        if self._saved is not None:
            return
        try:
            held = await self._store.setting(SETTING)
        except StoreError as fault:
            held, self.notes = None, [translate("Workbench", "presets cannot be read: {0}").format(in_window(str(fault)))]
        saved: dict[str, dict[str, Any]] = {}
        for name, options in held.items() if isinstance(held, Mapping) else ():
            notes: list[str] = []
            if name in (OWN, *BUILT_IN):
                notes.append(translate("Workbench", "it was skipped: Elsewise has a preset of that name"))
            elif isinstance(name, str) and name.strip():
                saved[name] = read_options(options, notes)
            self.notes += [translate("Workbench", "preset {0!s:.40}: {1}").format(name, note) for note in notes]
        self._saved = saved

    @property
    def names(self) -> dict[str, bool]:
        """Every preset's name, with whether it can be deleted."""
        return {**dict.fromkeys((OWN, *BUILT_IN), False), **dict.fromkeys(sorted(self._saved or {}), True)}

    @property
    def default(self) -> str:
        """The preset of sessions that chose none, or whose preset no longer exists."""
        return self.chosen if self.chosen in self.names else OWN

    def options(self, name: str) -> GenerationOptions:
        """The options of a preset; of the default one for an unknown name."""
        name = name if name in self.names else self.default
        if name == OWN:
            return self.own
        said = BUILT_IN.get(name, (self._saved or {}).get(name))
        return GenerationOptions.from_mapping(said or {})

    def check(self, name: str) -> None:
        """Refuses an unknown name."""
        if name and name not in self.names:
            raise Refusal(translate("Workbench", "there is no preset {0!r:.80} any more").format(name))

    async def save(self, name: str, options: Mapping[str, Any]) -> str:
        """Saves options under a name; returns the normalised name."""
        name = " ".join(clean_text(name).split())
        if not name or len(name) > LONGEST_NAME:
            raise Refusal(
                translate("Workbench", "a preset's name has 1 to {0} characters, not {1}").format(LONGEST_NAME, len(name))
            )
        if name in (OWN, *BUILT_IN):
            raise Refusal(translate("Workbench", "{0!r} comes with Elsewise; choose another name").format(name))
        await self._write({**(self._saved or {}), name: without_idle(options)})
        return name

    async def delete(self, name: str) -> None:
        if name in ("", OWN, *BUILT_IN):
            raise Refusal(translate("Workbench", "that one comes with Elsewise; only saved presets can be deleted"))
        self.check(name)
        await self._write({held: options for held, options in (self._saved or {}).items() if held != name})

    async def _write(self, saved: dict[str, dict[str, Any]]) -> None:
        await stored(self._store.set_setting(SETTING, saved))
        self._saved = saved


def without_idle(options: Mapping[str, Any]) -> dict[str, Any]:
    """Drops options whose stage is missing from `order`: a preset with both is not valid, though two layers together are."""
    order = options.get("order")
    if order is None:
        return dict(options)
    kept = {}
    for name, value in options.items():
        try:
            GenerationOptions.from_mapping({"order": order, name: value})
        except RuntimeFault:
            continue
        kept[name] = value
    return kept
