"""Arguments of what is called about adapters."""

from __future__ import annotations

import msgspec


class AddAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `add_adapter_async`."""

    path: str
    name: str | None
    any_base: bool


class AdapterName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A registered adapter."""

    name: str


class PushLora(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `push_lora_async`."""

    name: str
    scale: float
