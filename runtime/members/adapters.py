"""The adapter members of `LanguageModel`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class AdapterMembers(Protocol):
    """LoRA adapters: registered by folder or id, loaded beside the base's weights, stacked with a scale each.

    An id (``org/name``, ``org/name@revision``) is one of an adapter that lies in the models folder (`import_adapter`); nothing
    is ever fetched.

    A request runs under the stack that is in force when it is made, or under the one it names (`adapters=`), to its end.
    KV is kept by stack: changing the stack makes none stale and drops none, and what was computed under a stack is found
    again when it is back. An *activated* adapter (peft's aLoRA) takes part from the last place on where its invocation
    sequence stands in a request's tokens; the tokens before it use and share the KV of the rest of the stack. An answer that
    says the sequence itself activates the adapter from there on: it goes on as a branch made at that token would, the few
    tokens of the sequence are computed once more, and what they were drawn from stays in their records. The beams of a
    search stay under what its prompt says.

    Members that take a name know adapters by their name, and by ``name_type`` where a plain one ("lora") and an activated
    one ("alora") share it. All of them raise `AdapterError` for a name that nobody has; the message names the nearest.
    """

    @property
    def base_model_name(self) -> str:
        """The model that the adapters change."""

    @property
    def lora_stack(self) -> tuple[tuple[str, float], ...]:
        """(name, scale) of the stack in force, in order; never blocks."""

    def add_adapter(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        """Registers an adapter; its weights stay where they are. Blocking.

        Args:
            path: A folder in peft's layout or mlx-lm's, or an id that lies in the models folder.
            name: What to call it; None: its id, or the folder's name.
            any_base: Takes an adapter that names another base model, if all its shapes fit.

        Returns:
            Its name.

        Raises:
            AdapterError: Not here, damaged, a pickle (never opened), no LoRA, of another shape than the model's modules (it is
                named, with both shapes), made for another base, or the name is taken.
            UnsupportedFeatureError: The backend takes no adapters.
        """

    async def add_adapter_async(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        """`add_adapter`, awaited."""

    def load_adapter(self, name: str) -> None:
        """Brings the weights of an adapter in; the base is not touched. Blocking; loaded ones stay as they are.

        One that lies on the shelf is named by its id, and registered first.

        Raises:
            AdapterError: Unknown (what is on the shelf is named), or its file was changed or holds NaN.
            MemoryBudgetError: The device ran out of memory.
        """

    async def load_adapter_async(self, name: str) -> None:
        """`load_adapter`, awaited."""

    def unload_adapter(self, name: str) -> None:
        """Takes an adapter from the stack and frees its weights once no running request uses it. Blocking.

        It stays registered, and its KV stays until other KV needs the room. New requests that name it are refused at once.
        """

    async def unload_adapter_async(self, name: str) -> None:
        """`unload_adapter`, awaited; the waiting goes on when the awaiting task is cancelled."""

    def list_adapters(self) -> list[str]:
        """What is loaded, as ``name_type``; never blocks. `ModelInfo.adapters` has all that are registered, with bytes."""

    async def list_adapters_async(self) -> list[str]:
        """`list_adapters`, awaited."""

    def push_lora(self, name: str, scale: float = 1.0) -> None:
        """Puts an adapter on top of the stack; one that is not loaded is first, and so is a folder or an id. Blocking.

        Raises:
            AdapterError: As `add_adapter` and `load_adapter`, or a scale that is not finite.
        """

    async def push_lora_async(self, name: str, scale: float = 1.0) -> None:
        """`push_lora`, awaited."""

    def pop_lora(self) -> tuple[str, float]:
        """Takes the top of the stack away: its name and scale; it stays loaded. Blocking.

        Raises:
            AdapterError: The stack is empty.
        """

    async def pop_lora_async(self) -> tuple[str, float]:
        """`pop_lora`, awaited."""

    def clear_loras(self) -> None:
        """Empties the stack: the base alone; what is loaded stays loaded. Blocking."""

    async def clear_loras_async(self) -> None:
        """`clear_loras`, awaited."""
