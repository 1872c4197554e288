"""Operations on adapters: register, load, unload, stack."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from runtime.adapters.folder import is_on_shelf, name_of, read_header
from runtime.adapters.matching import check_base, matched
from runtime.adapters.registry import Entry, Registry
from runtime.aio import off_loop, settled
from runtime.engine.operations import Operations
from runtime.engine.owner import Engine
from runtime.errors import AdapterError
from runtime.loading.paths import is_model_id


class AdapterOperations:
    """Registers, loads, unloads and stacks adapters; callable from any thread.

    Args:
        engine: The owner thread.
        operations: Their pending requests delay the unloading of an adapter.
        registry: Names, headers and the stack.
        base_names: Names of the model; an adapter for another base is refused.
    """

    def __init__(self, engine: Engine, operations: Operations, registry: Registry, base_names: Sequence[str]) -> None:
        self._engine, self._operations, self.registry = engine, operations, registry
        self._base_names = tuple(base_names)
        self._loading = threading.Lock()  # held while a worker thread waits for the owner thread, which must not take it
        self._publishing = threading.Lock()

    async def add_adapter(self, path: str, name: str | None, any_base: bool) -> str:
        """Registers a folder; returns the adapter's name."""
        return await off_loop(self._add, path, name, any_base=any_base)

    async def load_adapter(self, name: str) -> None:
        await off_loop(self._load, name)

    async def push_lora(self, name: str, scale: float) -> None:
        """Pushes an adapter on the stack; registers and loads it first if necessary."""
        await off_loop(self._push, name, scale)

    async def pop_lora(self) -> tuple[str, float]:
        """Pops the top of the stack; returns its name and scale."""
        top = self.registry.pop()
        self._publish()
        return top

    async def clear_loras(self) -> None:
        self.registry.clear()
        self._publish()

    async def unload_adapter(self, name: str) -> None:
        """Frees the weights when the last request that uses them has ended, even if the wait is cancelled."""
        await settled(self._unload(name), shielded=True)

    def _unload(self, name: str) -> Future[None]:
        self._operations.end_turn()  # unloading waits for the adapter's requests, which a blocked loop would never submit
        done: Future[None] = Future()
        entry = self.registry.begin_unloading(name)
        if entry is None:
            done.set_result(None)
            return done
        self._publish()
        return self._operations.settling(done, lambda: self._when_unused(entry, done))

    def _add(self, path: str | Path, name: str | None, *, any_base: bool = False) -> str:
        header = read_header(path)
        if not any_base:
            check_base(header, self._base_names)
        header = matched(header, self._engine.call(self._engine.backend.adapter_targets).result())
        entry = self.registry.add(name_of(header.folder) if name is None else name, header)
        self._publish()
        return entry.name

    def _load(self, name: str) -> None:
        with self._loading:
            entry = self.registry.find(self._registered(name))
            if entry.unloading:
                raise AdapterError(f"adapter {entry.qualified} is being unloaded; load it again when that is done")
            if entry.digest is None:
                adapter = entry.header.read()

                def load() -> None:  # in one call, so that the same weights cannot be unloaded in between
                    self.registry.loaded(entry, adapter.digest, self._engine.backend.load_adapter(adapter))

                self._engine.call(load).result()
                self._publish()

    def _push(self, name: str, scale: float) -> None:
        name = self._registered(name, folders=True)
        self._load(name)
        self.registry.push(name, scale)
        self._publish()

    def _registered(self, name: str, *, folders: bool = False) -> str:
        """The name of a registered adapter; registers one of the shelf, or with `folders` a folder, if it is not yet."""
        if self.registry.knows(name):
            return name
        is_path = not is_model_id(name) or Path(name).exists()
        return self._add(name, None) if is_on_shelf(name) or (folders and is_path) else name

    def _when_unused(self, entry: Entry, done: Future[None]) -> None:
        """Runs on the owner thread; frees the weights when no request uses them."""
        unused: Future[None] = Future()
        unused.add_done_callback(lambda _: self._free(entry, unused, done))
        self._engine.scheduler.when_unused(str(entry.digest), unused)

    def _free(self, entry: Entry, unused: Future[None], done: Future[None]) -> None:
        error, digest = unused.exception(), str(entry.digest)
        pending = any(job.uses(digest) for job in self._operations.pending_jobs()) or self._engine.expects(digest)
        if error is None and pending:  # a request was made earlier and has not reached the scheduler
            self._when_unused(entry, done)
            return
        try:
            if error is not None:
                raise error
            if not self.registry.shares_weights(entry):
                self._engine.backend.unload_adapter(digest)
            self.registry.unloaded(entry)
            self._publish()
        except BaseException as fault:  # noqa: BLE001  # the border: the caller gets it
            self.registry.cancel_unloading(entry)
            done.set_exception(fault)
        else:
            done.set_result(None)

    def _publish(self) -> None:
        """Updates the backend's `info` with the registered adapters and the stack."""
        with self._publishing:
            backend, registry = self._engine.backend, self.registry
            backend.info = replace(
                backend.info, adapters=registry.infos(), lora_stack=registry.stack, stack_digest=registry.stack_digest
            )
