"""What holds for the whole app: models and device, memory, generation, appearance, data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AppSettings:
    """Each field is one row. None and "auto" leave the choice to the engine."""

    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"  # float16, bfloat16, int8, int4: of linear layers, on a processor (hf)
    chat_format: str = "auto"  # how messages become text: the model's own, "none" for text without roles, or a family's
    chat_template_file: str = ""  # the user's own jinja2 template, run in the sandbox; then `chat_format` is "auto"
    offload: str = "none"  # "disk": weights that do not fit into memory are read at every forward
    context_length: int | None = None  # tokens
    threads: int | None = None
    draft_model: str = ""  # a model on the shelf that guesses ahead; "" is none
    kv_cache_bytes: int | None = None
    disk_bytes: int | None = None  # of KV blocks
    preset: str = ""  # of sessions that chose none; "" is Elsewise's own
    scheme: str = "system"  # system, light, dark
    contrast: str = "system"  # system, normal, high
    motion: str = "system"  # system, reduced
    text_percent: int = 100  # 80 to 200


@dataclass(frozen=True, slots=True)
class DataFacts:
    """Where everything is."""

    folder: str
    sessions_bytes: int = 0
    backups: Sequence[str] = ()  # names, the latest first


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of all sessions; every row of it was read again."""

    path: str
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class SettingsView:
    """What is set, and what could be."""

    values: AppSettings = field(default_factory=AppSettings)
    needs_reload: bool = False  # the model that runs was loaded with other settings
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by row, where there are some
    data: DataFacts | None = None
    notes: Sequence[str] = ()  # what was stored and could not be taken


class SettingsCommands(Protocol):
    """The settings window. Every coroutine may raise `Refusal`; nothing was changed then."""

    async def settings(self) -> SettingsView:
        """What is set."""

    async def change_setting(self, name: str, value: object) -> SettingsView:
        """Changes one row, a field of `AppSettings`; it is stored before this returns."""

    async def reload_model(self) -> SettingsView:
        """Loads the model anew with what is set."""

    async def back_up(self) -> Backup:
        """Copies all sessions beside themselves and checks the copy; it stays until somebody deletes it."""

    async def verify_data(self) -> Sequence[str]:
        """Reads every stored row; what is damaged, each with its session and turn."""

    async def hints(self) -> frozenset[str]:
        """What is explained once and was not dismissed yet: "tokens", "models"."""

    async def dismiss_hint(self, name: str) -> bool:
        """It is not shown again, by any window; whether this call was the first to say so."""
