"""Adapters of a model in this process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from runtime.adapters.folder import is_on_shelf, name_of, read_header
from runtime.adapters.matching import check_base, matched
from runtime.adapters.registry import Entry
from runtime.adapters.uses import check_adapters, check_scale
from runtime.errors import AdapterError
from runtime.loading.paths import is_model_id
from runtime.model.core import Core
from runtime.scheduler.jobs import Job


class AdapterMembers(Core):
    """`add_adapter`, `push_lora` and their kin; see `runtime.members.adapters`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._changing = threading.RLock()  # one change of what is loaded, or told of it, at a time

    @property
    def base_model_name(self) -> str:
        """The base."""
        return self.info.name

    @property
    def lora_stack(self) -> tuple[tuple[str, float], ...]:
        """In force."""
        return self._adapters.stack

    def add_adapter(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        """Blocking."""
        header = read_header(path)
        if not any_base:
            check_base(header, self._names)
        header = matched(header, self._engine.call(self._engine.backend.adapter_targets).result())
        entry = self._adapters.add(name_of(header.folder) if name is None else name, header)
        self._tell()
        return entry.name

    async def add_adapter_async(self, path: str | Path, name: str | None = None, *, any_base: bool = False) -> str:
        """Off the loop."""
        return await asyncio.to_thread(self.add_adapter, path, name, any_base=any_base)

    def load_adapter(self, name: str) -> None:
        """Blocking."""
        with self._changing:
            entry = self._adapters.find(self._registered(name))
            if entry.leaving:
                raise AdapterError(f"adapter {entry.qualified} is being unloaded; load it again when that is done")
            if entry.digest is None:
                adapter = entry.header.read()
                held = self._engine.call(lambda: self._engine.backend.load_adapter(adapter)).result()
                self._adapters.loaded(entry, adapter.digest, held)
                self._tell()

    async def load_adapter_async(self, name: str) -> None:
        """Off the loop."""
        await asyncio.to_thread(self.load_adapter, name)

    def unload_adapter(self, name: str) -> None:
        """Blocking."""
        self._end_own_turn()  # what this turn of a loop has asked for would be waited for, and could not come
        self._unload(name).result()

    async def unload_adapter_async(self, name: str) -> None:
        """Awaited."""
        await asyncio.shield(asyncio.wrap_future(self._unload(name)))

    def list_adapters(self) -> list[str]:
        """Loaded ones."""
        return [adapter.qualified for adapter in self.info.adapters if adapter.loaded]

    async def list_adapters_async(self) -> list[str]:
        """Loaded ones."""
        return self.list_adapters()

    def push_lora(self, name: str, scale: float = 1.0) -> None:
        """Blocking."""
        ((name, scale),) = check_adapters(((name, check_scale(str(name), scale)),))
        name = self._registered(name, folders=True)
        self.load_adapter(name)
        self._adapters.push(name, scale)
        self._tell()

    async def push_lora_async(self, name: str, scale: float = 1.0) -> None:
        """Off the loop."""
        await asyncio.to_thread(self.push_lora, name, scale)

    def pop_lora(self) -> tuple[str, float]:
        """The top."""
        top = self._adapters.pop()
        self._tell()
        return top

    async def pop_lora_async(self) -> tuple[str, float]:
        """The top."""
        return self.pop_lora()

    def clear_loras(self) -> None:
        """The base alone."""
        self._adapters.clear()
        self._tell()

    async def clear_loras_async(self) -> None:
        """The base alone."""
        self.clear_loras()

    def _registered(self, name: str, *, folders: bool = False) -> str:
        """The name of an adapter that is registered, if need be now: one of the shelf, or a folder where those are taken."""
        if self._adapters.knows(name) or not isinstance(name, str):
            return name  # or the registry's own message follows
        a_path = not is_model_id(name) or Path(name).exists()
        return self.add_adapter(name) if is_on_shelf(name) or (folders and a_path) else name

    # ---- unloading ----------------------------------------------------------------------------------------------

    def _unload(self, name: str) -> Future[None]:
        """Settled when the weights are gone."""
        done: Future[None] = Future()
        with self._changing:
            entry = self._adapters.find(name)
            if entry.digest is None or entry.leaving:
                if not entry.leaving:
                    done.set_result(None)
                    return done
                raise AdapterError(f"adapter {entry.qualified} is being unloaded already")
            self._adapters.leave(entry)
            self._tell()
        try:
            self._engine.call(lambda: self._wait_for(entry, done))
        except BaseException:
            self._adapters.stay(entry)
            raise
        return done

    def _wait_for(self, entry: Entry, done: Future[None]) -> None:
        """On the owner thread: frees the weights when nobody uses them."""
        unused: Future[None] = Future()
        unused.add_done_callback(lambda _: self._let_go(entry, unused, done))
        self._engine.scheduler.when_unused(str(entry.digest), unused)

    def _let_go(self, entry: Entry, unused: Future[None], done: Future[None]) -> None:
        error = unused.exception()
        if error is None and self._is_expected(str(entry.digest)):
            self._wait_for(entry, done)  # a request was made before, and has yet to arrive
            return
        try:
            if error is not None:
                raise error
            if not self._adapters.shares(entry):
                self._engine.backend.unload_adapter(str(entry.digest))
            self._adapters.unloaded(entry)
            self._tell()
        except BaseException as fault:  # noqa: BLE001  # the border: the caller gets it
            self._adapters.stay(entry)
            done.set_exception(fault)
        else:
            done.set_result(None)

    def _is_expected(self, digest: str) -> bool:
        """Whether a request that uses the adapter was made and has yet to arrive: this turn's, or the rest of a batch."""
        turns = [list(jobs) for loop, jobs in list(self._turns.items()) if not loop.is_closed()]
        held = [list(jobs) for loop, jobs in list(self._held.values()) if not loop.is_closed()]
        made: list[Job] = [*chain(*turns), *chain(*held)]
        return any(job.uses(digest) for job in made) or self._engine.expects(digest)

    def _end_own_turn(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        for _, jobs in [held for held in self._held.values() if held[0] is loop]:
            self._turns.setdefault(loop, []).extend(jobs)
            jobs.clear()
        self._end_turn(loop)

    def _tell(self) -> None:
        """`info` names what is registered, loaded and in force."""
        with self._changing:
            backend = self._engine.backend
            known = self._adapters
            backend.info = replace(
                backend.info, adapters=known.infos(), lora_stack=known.stack, stack_digest=known.stack_digest
            )
