"""Exits of processes, and engines that are killed, stopped or slowed in each phase of their work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from runtime import EngineDiedError, EngineLimits, GenerationOptions, LanguageModel, spawn
from tests import exits
from tests.app.workbench.scene import until
from tests.reliability.suite import Order, Tally
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.tiny_models import tiny_path

ENGINES = ("hf", "mlx")
PHASES = ("load", "prefill", "decode", "query", "save")
HARMS = ("killed", "stopped", "slow")
LONG = [5 + i * 7 % 900 for i in range(2000)]  # a prompt of many chunks
SHORT = LONG[:40]
MANY = GenerationOptions(max_tokens=600, ignore_eos=True, top_k=0, seed=1)
SILENCE, LOADING = 3.0, 20.0  # seconds until a stalled engine is ended
PATIENCE = 90.0  # seconds until a caller must have an answer or an error, on a busy machine
PULSES = 8  # of a slow engine: stopped for a tenth of a second each


def every_exit(order: Order) -> Tally:
    """Ends processes with a loaded model in every way: with their own status, and without children left over."""
    tally = Tally()
    cases = list(itertools.product(exits.EXITS, ENGINES))
    random.Random(order.seed).shuffle(cases)
    for name, backend in itertools.islice(itertools.cycle(cases), order.count):

        def act(name: str = name, backend: str = backend) -> str:
            outcome = exits.run(exits.EXITS[name], backend, tiny_path("llama"))
            faults = outcome.faults(exits.EXITS[name])
            assert not faults, f"{faults}; {outcome.error[-300:]}"
            return f"on {backend}"

        tally.attempt(f"{name} on {backend}", act)
    return tally


def every_phase(order: Order) -> Tally:
    """Faults in each phase of an engine: the caller gets an error in time or the right answer, and the next engine works."""
    tally = Tally()
    cases = list(itertools.product(PHASES, HARMS, ENGINES))
    random.Random(order.seed).shuffle(cases)
    for number, (phase, harm, backend) in enumerate(itertools.islice(itertools.cycle(cases), order.count)):
        folder = order.folder / f"{number}"
        folder.mkdir()

        def act(phase: str = phase, harm: str = harm, backend: str = backend, folder: Path = folder) -> str:
            return asyncio.run(harmed(phase, harm, backend, folder))

        tally.attempt(f"{harm} in {phase} on {backend}", act)
    return tally


async def harmed(phase: str, harm: str, backend: str, folder: Path) -> str:
    """Runs one engine, injects the fault, and returns what the caller received."""
    own = psutil.Process()
    before = set(own.children())
    limits = EngineLimits(silence_seconds=SILENCE, loading_seconds=LOADING) if harm == "stopped" else None
    loading = asyncio.ensure_future(start(backend, folder, limits))
    harming: asyncio.Future[None] | None = None
    try:
        if phase == "load":
            await until(lambda: set(own.children()) - before)
            await asyncio.sleep(0.3)
            harming = asyncio.ensure_future(harm_process(harm, (set(own.children()) - before).pop().pid))
            model = await asyncio.wait_for(loading, PATIENCE)
        else:
            model = await loading
        async with model:
            if phase != "load":
                begun = asyncio.Event()
                work = asyncio.ensure_future(WORK[phase](model, begun))
                await asyncio.wait_for(begun.wait(), PATIENCE)
                harming = asyncio.ensure_future(harm_process(harm, model.pid))
                await asyncio.wait_for(work, PATIENCE)
            row = await asyncio.wait_for(model.next_token_logprobs(SHORT), PATIENCE)
            np.testing.assert_allclose(row, expected("llama", SHORT)[-1], atol=TOLERANCE, rtol=0)
            if harming is not None:
                await harming
            return f"{harm}: the right answer" if harm == "slow" else f"{harm} when it was done"
    except EngineDiedError:
        assert harm != "slow", "a slow engine was given up"
        return f"{harm}: its caller heard"
    finally:
        if harming is not None:
            await harming
        _, alive = psutil.wait_procs(set(own.children()) - before, timeout=exits.CHILD_SECONDS)
        for process in alive:
            process.kill()
        assert not alive, "its process is still there"


async def start(backend: str, folder: Path, limits: EngineLimits | None) -> LanguageModel:
    """An engine with small chunks, so that it has many steps, and a block file."""
    blocks = {"factory": "storage:open_blocks", "path": str(folder / "blocks.db"), "budget": 1 << 28}
    return await spawn(
        tiny_path("llama"), backend, limits=limits, log_path=folder / "log", blocks=blocks, threads=1, prefill_chunk_tokens=64
    )


async def harm_process(harm: str, pid: int) -> None:
    """Injects the fault."""
    with contextlib.suppress(ProcessLookupError):  # it may have ended already
        if harm != "slow":
            os.kill(pid, signal.SIGKILL if harm == "killed" else signal.SIGSTOP)
            return
        for _ in range(PULSES):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.1)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.02)


async def prefill(model: LanguageModel, begun: asyncio.Event) -> None:
    await model.cache_kv_async(LONG, on_progress=lambda _: begun.set())


async def decode(model: LanguageModel, begun: asyncio.Event) -> None:
    said: list[int] = []
    async for record in model.generate(SHORT, MANY):
        said.append(record.token_id)
        if len(said) == 3:
            begun.set()
    assert len(said) == MANY.max_tokens


async def query(model: LanguageModel, begun: asyncio.Event) -> None:
    asking = asyncio.gather(*(model.next_token_logprobs(LONG[:n]) for n in range(20, 60)))
    await asyncio.sleep(0)  # lets the requests start
    begun.set()
    for n, row in zip(range(20, 60), await asking, strict=True):
        np.testing.assert_allclose(row, expected("llama", LONG[:n])[-1], atol=TOLERANCE, rtol=0)


async def save(model: LanguageModel, begun: asyncio.Event) -> None:
    await model.cache_kv_async(LONG)
    saving = asyncio.ensure_future(model.save_blocks_async(LONG))
    await asyncio.sleep(0)
    begun.set()
    assert (await saving).tokens == len(LONG)


WORK: dict[str, Callable[[LanguageModel, asyncio.Event], Awaitable[Any]]] = {
    "prefill": prefill,
    "decode": decode,
    "query": query,
    "save": save,
}
