"""`AdapterStack`: the LoRA adapters of an engine that supports them."""

from __future__ import annotations

from pathlib import Path

from runtime.adapters.uses import check_adapters, check_scale
from runtime.aio import blocking
from runtime.errors import AdapterError
from runtime.options.checking import shown
from runtime.transport.base import Transport


class AdapterStack:
    """LoRA adapters: registered by folder or id, loaded beside the base's weights, stacked with a scale each.

    An id (``org/name``, ``org/name@revision``) names an adapter in the models folder (`import_adapter`); nothing is fetched.

    A request runs to its end under the stack in force when it is made, or under the adapters that it names (`adapters=`). KV is
    stored by stack: a change of the stack drops no KV, and the KV of a stack is found again when that stack is restored.
    An *activated* adapter (peft's aLoRA) acts from the last occurrence of its invocation sequence in a request's tokens on; the
    tokens before it use and share the KV of the rest of the stack. An answer that contains the sequence activates the adapter
    from there on, like a branch at that token: the few tokens of the sequence are computed once more, and their records keep
    the distribution that they were drawn from. All beams of a search use the adapters of its prompt.

    Members that take a name accept an adapter's name, and ``name_type`` where a plain adapter ("lora") and an activated one
    ("alora") share a name. All of them raise `AdapterError` for an unknown name; the message names the nearest.
    Methods ending in `_async` are awaited; their twins without the suffix block.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def base_model_name(self) -> str:
        """The model that the adapters change."""
        return self._transport.state.info.name

    @property
    def lora_stack(self) -> tuple[tuple[str, float], ...]:
        """(name, scale) of the stack in force, in order; never blocks."""
        return self._transport.state.info.lora_stack

    def list_adapters(self) -> list[str]:
        """The loaded adapters, as ``name_type``; never blocks. `ModelInfo.adapters` has all registered ones, with bytes."""
        return [adapter.qualified for adapter in self._transport.state.info.adapters if adapter.loaded]

    async def list_adapters_async(self) -> list[str]:
        """`list_adapters`, awaited."""
        return self.list_adapters()

    async def add_adapter_async(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        """Registers an adapter, without loading its weights.

        Args:
            path: A folder in peft's layout or mlx-lm's, or an id in the models folder.
            name: Its name; None: its id, or the folder's name.
            any_base: Takes an adapter that names another base model, if all its shapes fit.

        Returns:
            The registered name.

        Raises:
            AdapterError: Not found, damaged, a pickle (never opened), not a LoRA, of another shape than the model's modules
                (the message has both shapes), made for another base, or the name is taken.
            UnsupportedFeatureError: The backend takes no adapters.
        """
        named = None if name is None else _text(name)
        added: str = await self._transport.call("add_adapter", path=_absolute(path), name=named, any_base=any_base)
        return added

    async def load_adapter_async(self, name: str) -> None:
        """Loads the weights of an adapter beside those of the base; does nothing if they are loaded.

        An adapter of the shelf, named by its id, is registered first.

        Raises:
            AdapterError: The adapter is unknown (the message lists those on the shelf), or its file was changed or holds NaN.
            MemoryBudgetError: The device ran out of memory.
        """
        await self._transport.call("load_adapter", name=_text(name))

    async def unload_adapter_async(self, name: str) -> None:
        """Removes an adapter from the stack, and frees its weights once no running request uses it.

        The adapter stays registered, and its KV stays until it is evicted. New requests that name it are refused at once. The
        unloading continues even if the awaiting task is cancelled.
        """
        await self._transport.call("unload_adapter", name=_text(name))

    async def push_lora_async(self, name: str, scale: float = 1.0) -> None:
        """Puts an adapter on top of the stack; an adapter that is not loaded, a folder or an id is loaded first.

        Raises:
            AdapterError: As `add_adapter` and `load_adapter`, or a scale that is not finite.
        """
        ((name, scale),) = check_adapters(((name, check_scale(str(name), scale)),))
        await self._transport.call("push_lora", name=name, scale=scale)

    async def pop_lora_async(self) -> tuple[str, float]:
        """Removes the top adapter of the stack, which stays loaded, and returns its name and scale.

        Raises:
            AdapterError: The stack is empty.
        """
        name, scale = await self._transport.call("pop_lora")
        return name, scale

    async def clear_loras_async(self) -> None:
        """Empties the stack, so that the base alone is in force; adapters stay loaded."""
        await self._transport.call("clear_loras")

    add_adapter = blocking(add_adapter_async)
    load_adapter = blocking(load_adapter_async)
    unload_adapter = blocking(unload_adapter_async)
    push_lora = blocking(push_lora_async)
    pop_lora = blocking(pop_lora_async)
    clear_loras = blocking(clear_loras_async)


def _absolute(given: str | Path) -> str:
    """The absolute path, if the path exists or is not formed like an id; otherwise the id, unchanged."""
    if not isinstance(given, str | Path):
        raise AdapterError(f"an adapter is a folder or an id on the shelf, not {shown(given)}")
    from runtime.loading.paths import is_model_id  # imported late: the window opens without it

    path = str(given)
    here = Path(path).expanduser()
    return str(here.absolute()) if path.strip() and (here.exists() or not is_model_id(path)) else path


def _text(name: str) -> str:
    if not isinstance(name, str):
        raise AdapterError(f"an adapter's name is a text, not {name!r:.80}")
    return name
