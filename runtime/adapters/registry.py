"""The registry of a model's adapters, and its current stack: names and headers, no weights."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.adapters.folder import is_on_shelf, on_the_shelf
from runtime.adapters.layouts import AdapterHeader
from runtime.adapters.stacks import Routing, salted
from runtime.adapters.uses import Adapters, Uses, check_adapters, check_scale, digest_of_stack
from runtime.errors import AdapterError
from runtime.info import AdapterInfo
from runtime.options.checking import nearest

NamedStack = tuple[tuple[str, float], ...]  # (name, scale), in order


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered adapter."""

    name: str  # given by the caller
    header: AdapterHeader  # of its folder, with the model's own module paths
    digest: str | None = None  # SHA-256 of its numbers; None while it is not loaded
    nbytes: int = 0  # bytes of its loaded weights
    unloading: bool = False  # whether it is being unloaded, and takes no new requests

    @property
    def qualified(self) -> str:
        """The name with the kind (``NAME_lora``), which distinguishes a plain and an activated adapter of one name."""
        return f"{self.name}_{self.header.kind}"

    @property
    def info(self) -> AdapterInfo:
        """The adapter as `ModelInfo.adapters` lists it."""
        header = self.header
        return AdapterInfo(
            name=self.name,
            kind=header.kind,
            folder=str(header.folder),
            base=header.base,
            rank=max(pair.rank for pair in header.modules.values()),
            modules=len(header.modules),
            parameters=header.parameters,
            loaded=self.digest is not None,
            bytes=self.nbytes,
            digest=self.digest,
            invocation=header.invocation,
        )


class Registry:
    """The adapters of one model and its stack. Thread-safe.

    Args:
        fingerprint: Fingerprint of the model's KV, the first part of namespaces.
        vocab: Size of the vocabulary, which bounds the token ids of invocations.

    Attributes:
        routing: The routing of requests that name no adapters: the current stack.
    """

    def __init__(self, fingerprint: str, vocab: int) -> None:
        self._vocab = vocab
        self.routing = Routing(fingerprint)
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}  # by qualified name
        self._stack: tuple[tuple[str, float], ...] = ()  # (qualified name, scale)

    # ---- names ------------------------------------------------------------------------------------------------

    def add(self, name: str, header: AdapterHeader) -> Entry:
        """Registers an adapter; the same folder under the same name is accepted again.

        Raises:
            AdapterError: The name is taken or impossible, or its invocation has ids outside the vocabulary.
        """
        if not isinstance(name, str) or not name.strip() or ":" in name:
            raise AdapterError(f"an adapter's name is a text without ':', not {name!r:.80}")
        if any(token >= self._vocab for token in header.invocation):
            raise AdapterError(
                f"{header.folder}: invocation token {max(header.invocation):,} is outside the vocabulary of {self._vocab:,}; "
                "the adapter is for another base"
            )
        entry = Entry(name, header)
        with self._lock:
            known = self._entries.get(entry.qualified)
            if known is None:
                self._entries[entry.qualified] = entry
                return entry
            if known.header != header:
                raise AdapterError(f"an adapter {entry.qualified} is registered already, from {known.header.folder}")
            return known

    def knows(self, name: object) -> bool:
        """Whether a name belongs to one or more adapters."""
        with self._lock:
            return bool(self._named(name))

    def find(self, name: str) -> Entry:
        """The adapter with this name, `qualified` name, or id with or without revision.

        Raises:
            AdapterError: No adapter or several match; the message has the nearest names and the adapters on the shelf.
        """
        with self._lock:
            found = self._named(name)
            names = {entry.name for entry in self._entries.values()} | set(self._entries)
        if len(found) == 1:
            return found[0]
        if found:
            several = "two" if len(found) == 2 else f"{len(found):,}"
            raise AdapterError(f"{name!r} is {several} adapters: {' and '.join(sorted(entry.qualified for entry in found))}")
        if is_on_shelf(name):
            raise AdapterError(f"adapter {name} is on the shelf, and not loaded; load_adapter({name!r}) brings it in")
        hint = nearest(name, names) if names and isinstance(name, str) else "none is registered"
        there = f"on the shelf: {on_the_shelf()}; `elsewise models import FOLDER` puts one there, or give a folder's path"
        raise AdapterError(f"no adapter is called {name!r:.200}: {hint}; {there}")

    def _named(self, name: object) -> list[Entry]:
        if isinstance(name, str) and name in self._entries:
            return [self._entries[name]]
        entries = list(self._entries.values())
        named = [entry for entry in entries if entry.name == name]
        return named or [entry for entry in entries if entry.name.partition("@")[0] == name]

    def infos(self) -> tuple[AdapterInfo, ...]:
        with self._lock:
            return tuple(entry.info for entry in self._entries.values())

    # ---- loaded weights -----------------------------------------------------------------------------------------

    def loaded(self, entry: Entry, digest: str, nbytes: int) -> None:
        """Records that an adapter's weights are loaded."""
        self._set(replace(entry, digest=digest, nbytes=nbytes, unloading=False))

    def begin_unloading(self, name: str) -> Entry | None:
        """Removes an adapter from the stack and refuses new requests with it; returns None if it is not loaded.

        Raises:
            AdapterError: The adapter is unknown, or is being unloaded already.
        """
        with self._lock:
            entry = self.find(name)
            if entry.unloading:
                raise AdapterError(f"adapter {entry.qualified} is being unloaded already")
            if entry.digest is None:
                return None
            self._set(replace(entry, unloading=True))
            self._set_stack([use for use in self._stack if use[0] != entry.qualified])
            return entry

    def cancel_unloading(self, entry: Entry) -> None:
        """Allows new requests with the adapter again."""
        self._set(replace(entry, unloading=False))

    def unloaded(self, entry: Entry) -> None:
        """Records that an adapter's weights are unloaded."""
        self._set(replace(entry, digest=None, nbytes=0, unloading=False))

    def shares_weights(self, entry: Entry) -> bool:
        """Whether another loaded adapter has the same weights."""
        with self._lock:
            return any(e.digest == entry.digest for e in self._entries.values() if e.qualified != entry.qualified)

    def _set(self, entry: Entry) -> None:
        with self._lock:
            self._entries[entry.qualified] = entry
            self._set_stack(self._stack)

    # ---- the stack ----------------------------------------------------------------------------------------------

    @property
    def stack(self) -> NamedStack:
        """The adapters of requests that name none: (name, scale), in order."""
        with self._lock:
            return tuple((self._entries[qualified].name, scale) for qualified, scale in self._stack)

    @property
    def stack_digest(self) -> str:
        with self._lock:
            return digest_of_stack(self.routing.uses)

    def push(self, name: str, scale: float) -> None:
        """Pushes an adapter on the stack.

        Raises:
            AdapterError: It is not loaded, or the scale is not finite.
        """
        with self._lock:
            entry = self._usable(name)
            self._set_stack([*self._stack, (entry.qualified, check_scale(name, scale))])

    def pop(self) -> tuple[str, float]:
        """Pops the top of the stack; returns its name and scale.

        Raises:
            AdapterError: The stack is empty.
        """
        with self._lock:
            if not self._stack:
                raise AdapterError("the stack of adapters is empty: nothing to pop (push_lora puts one on it)")
            *rest, (qualified, scale) = self._stack
            self._set_stack(rest)
            return self._entries[qualified].name, scale

    def clear(self) -> None:
        with self._lock:
            self._set_stack(())

    def _set_stack(self, stack: Sequence[tuple[str, float]]) -> None:
        self._stack = tuple(stack)
        self.routing = Routing(
            self.routing.fingerprint, _uses([(self._entries[qualified], scale) for qualified, scale in stack])
        )

    # ---- requests -----------------------------------------------------------------------------------------------

    def routing_of(self, adapters: Adapters, salt: str) -> Routing:
        """The adapters of a request, fixed for its whole duration.

        Args:
            adapters: The request's adapters; None for the current stack.
            salt: The request's cache salt; requests with another salt do not find its KV.

        Raises:
            AdapterError: An adapter is unknown, not loaded, or being unloaded.
        """
        if adapters is None:
            routing = self.routing
            return Routing(salted(routing.fingerprint, salt), routing.uses) if salt else routing
        with self._lock:
            uses = [(self._usable(name), scale) for name, scale in check_adapters(adapters)]
        return Routing(salted(self.routing.fingerprint, salt), _uses(uses))

    def _usable(self, name: str) -> Entry:
        entry = self.find(name)
        if entry.unloading:
            raise AdapterError(f"adapter {entry.qualified} is being unloaded; load_adapter({name!r}) brings it back afterwards")
        if entry.digest is None:
            raise AdapterError(f"adapter {entry.qualified} is not loaded; load_adapter({name!r}) brings its weights in")
        return entry


def _uses(entries: Sequence[tuple[Entry, float]]) -> Uses:
    return tuple((str(entry.digest), scale, entry.header.invocation) for entry, scale in entries)
