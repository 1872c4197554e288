"""Adapters over the pipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, cast

from runtime.adapters.uses import check_adapters, check_scale
from runtime.client.calls import Calls
from runtime.errors import AdapterError
from runtime.info import ModelInfo
from runtime.loading.paths import is_model_id
from runtime.options.checking import shown


class AdapterCalls(ABC):
    """`add_adapter`, `push_lora` and their kin; see `runtime.members.adapters`. A relative path counts from here."""

    _calls: Calls

    @property
    @abstractmethod
    def info(self) -> ModelInfo:
        """What is known of the model."""

    @property
    def base_model_name(self) -> str:
        return self.info.name

    @property
    def lora_stack(self) -> tuple[tuple[str, float], ...]:
        return self.info.lora_stack

    def add_adapter(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        return cast("str", self._calls.call_sync("add_adapter_async", **_adding(path, name, any_base)))

    async def add_adapter_async(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        return cast("str", await self._calls.call("add_adapter_async", **_adding(path, name, any_base)))

    def load_adapter(self, name: str) -> None:
        self._calls.call_sync("load_adapter_async", name=_plain(name))

    async def load_adapter_async(self, name: str) -> None:
        await self._calls.call("load_adapter_async", name=_plain(name))

    def unload_adapter(self, name: str) -> None:
        self._calls.call_sync("unload_adapter_async", name=_plain(name))

    async def unload_adapter_async(self, name: str) -> None:
        await self._calls.call("unload_adapter_async", name=_plain(name))

    def list_adapters(self) -> list[str]:
        return [adapter.qualified for adapter in self.info.adapters if adapter.loaded]

    async def list_adapters_async(self) -> list[str]:
        return self.list_adapters()

    def push_lora(self, name: str, scale: float = 1.0) -> None:
        self._calls.call_sync("push_lora_async", **_pushing(name, scale))

    async def push_lora_async(self, name: str, scale: float = 1.0) -> None:
        await self._calls.call("push_lora_async", **_pushing(name, scale))

    def pop_lora(self) -> tuple[str, float]:
        return cast("tuple[str, float]", self._calls.call_sync("pop_lora_async"))

    async def pop_lora_async(self) -> tuple[str, float]:
        return cast("tuple[str, float]", await self._calls.call("pop_lora_async"))

    def clear_loras(self) -> None:
        self._calls.call_sync("clear_loras_async")

    async def clear_loras_async(self) -> None:
        await self._calls.call("clear_loras_async")


def _adding(path: str | Path, name: str | None, any_base: bool) -> dict[str, Any]:
    return {"path": _from_here(path), "name": None if name is None else _plain(name), "any_base": any_base}


def _pushing(name: str, scale: float) -> dict[str, Any]:
    ((name, scale),) = check_adapters(((name, check_scale(str(name), scale)),))
    return {"name": name, "scale": scale}


def _from_here(given: str | Path) -> str:
    """Absolute where it is a folder here; else an id, or nothing that exists, as it was written."""
    if not isinstance(given, str | Path):
        raise AdapterError(f"an adapter is a folder or an id on the shelf, not {shown(given)}")
    path = str(given)
    here = Path(path).expanduser()
    return str(here.absolute()) if path.strip() and (here.exists() or not is_model_id(path)) else path


def _plain(name: str) -> str:
    if not isinstance(name, str):
        raise AdapterError(f"an adapter's name is a text, not {name!r:.80}")
    return name
