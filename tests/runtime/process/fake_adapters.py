"""The adapter members of the fake model: names without weights, told through `info` as the real one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runtime import AdapterError, ModelInfo
from runtime.info import AdapterInfo


class FakeAdapters:
    """Every adapter is loaded as it is added; one whose path ends in "broken" is refused."""

    info: ModelInfo

    @property
    def base_model_name(self) -> str:
        return self.info.name

    @property
    def lora_stack(self) -> tuple[tuple[str, float], ...]:
        return self.info.lora_stack

    def add_adapter(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        if str(path).endswith("broken"):
            raise AdapterError(f"{path}: no adapter_config.json; this folder holds no adapter")
        made = AdapterInfo(name or Path(path).name, "lora", str(path), str(any_base), 1, 1, 1, True, 8, "d")
        self.info = replace(self.info, adapters=(*self.info.adapters, made))
        return made.name

    async def add_adapter_async(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        return self.add_adapter(path, name, any_base=any_base)

    def load_adapter(self, name: str) -> None:
        if name not in {adapter.name for adapter in self.info.adapters}:
            raise AdapterError(f"no adapter is called {name!r}")

    async def load_adapter_async(self, name: str) -> None:
        self.load_adapter(name)

    def unload_adapter(self, name: str) -> None:
        self.info = replace(self.info, adapters=tuple(adapter for adapter in self.info.adapters if adapter.name != name))

    async def unload_adapter_async(self, name: str) -> None:
        self.unload_adapter(name)

    def list_adapters(self) -> list[str]:
        return [adapter.qualified for adapter in self.info.adapters]

    async def list_adapters_async(self) -> list[str]:
        return self.list_adapters()

    def push_lora(self, name: str, scale: float = 1.0) -> None:
        self.info = replace(self.info, lora_stack=(*self.info.lora_stack, (name, scale)))

    async def push_lora_async(self, name: str, scale: float = 1.0) -> None:
        self.push_lora(name, scale)

    def pop_lora(self) -> tuple[str, float]:
        top = self.info.lora_stack[-1]
        self.info = replace(self.info, lora_stack=self.info.lora_stack[:-1])
        return top

    async def pop_lora_async(self) -> tuple[str, float]:
        return self.pop_lora()

    def clear_loras(self) -> None:
        self.info = replace(self.info, lora_stack=())

    async def clear_loras_async(self) -> None:
        self.clear_loras()
