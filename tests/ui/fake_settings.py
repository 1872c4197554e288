"""The part of the fake workbench that is about the settings of the app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields, replace

from tests.ui.fake_base import FakeBase
from ui import AppSettings, Backup, DataFacts, SettingsView

NOW = ("kv_cache_bytes", "preset", "contrast", "motion", "scheme", "text_percent")


class FakeSettings(FakeBase):
    """Keeps the settings in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.held = SettingsView(
            choices={
                "backend": ["auto", "hf", "mlx"],
                "device": ["auto", "cpu"],
                "dtype": ["auto", "float32"],
                "weights": ["auto", "float16", "bfloat16", "int8", "int4"],
                "chat_format": ["auto", "none", "chatml"],
                "offload": ["none", "disk"],
                "draft_model": ["", "tiny"],
                "preset": ["", "greedy"],
            },
            data=DataFacts("/data/elsewise", 12_000_000, ["sessions.2026-11-21.db"]),
        )
        self.damage: Sequence[str] = ()
        self.slow_backup: asyncio.Event | None = None

    async def settings(self) -> SettingsView:
        return self.held

    async def change_setting(self, name: str, value: object) -> SettingsView:
        self._note("change_setting", name, value)
        assert name in {f.name for f in fields(AppSettings)}
        values = replace(self.held.values, **{name: value})  # type: ignore[arg-type]  # a field by name
        self.held = replace(self.held, values=values, needs_reload=self.held.needs_reload or name not in NOW)
        return self.held

    async def reload_model(self) -> SettingsView:
        self._note("reload_model")
        self.held = replace(self.held, needs_reload=False)
        return self.held

    async def back_up(self) -> Backup:
        self._note("back_up")
        if self.slow_backup is not None:
            await self.slow_backup.wait()
        return Backup("/data/elsewise/backups/sessions.by-hand.2026-11-22.db", 12_000_000)

    async def verify_data(self) -> Sequence[str]:
        self._note("verify_data")
        return self.damage
