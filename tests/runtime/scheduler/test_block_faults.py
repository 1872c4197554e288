"""Faults of the model's library while KV is saved or restored end that save or restore alone."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import FakeBackend
from runtime.errors import MemoryBudgetError, SessionClosedError
from runtime.info import BlocksSaved
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.load import BlockOptions
from runtime.scheduler.kv import saving
from tests.block_stores import MemoryBlocks
from tests.fakes import Gate, assert_right, engine_of, fake_model, local, settled, some_ids, wait_for_jobs
from tests.runtime.model.trouble import audit

GREEDY = GenerationOptions(max_tokens=60, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
STEM = some_ids(1, 300)
KV = 2 * 16 * 8  # bytes of one token's KV in the fake model


class Panic(BaseException):
    """The panic of a native library: a BaseException that is no Exception."""


def bend(monkeypatch: pytest.MonkeyPatch, model: LanguageModel, member: str, error: BaseException, after: int = 0) -> None:
    """Makes a member of the backend fail after its first `after` calls."""
    backend, calls = engine_of(model).backend, itertools.count()
    real = getattr(backend, member)

    def act(*args: Any, **kwargs: Any) -> Any:
        if next(calls) >= after:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(backend, member, act)


async def beside(model: LanguageModel, act: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Runs `act` while a chat streams; the chat's tokens must be the same as without it."""
    gate, backend = Gate(), engine_of(model).backend
    assert isinstance(backend, FakeBackend)
    backend.behaviour.before_forward = gate

    async def chat() -> list[int]:
        return [record.token_id async for record in model.generate([5, 6, 7], GREEDY)]

    alone = await chat()
    gate.shut(after=3)
    chatting = asyncio.create_task(chat())
    assert await asyncio.to_thread(gate.reached.wait, 30)
    acting = asyncio.create_task(act())
    await asyncio.to_thread(wait_for_jobs, model, 1)
    gate.open()
    got = await acting
    assert await chatting == alone
    return got


@pytest.mark.parametrize("error", [RuntimeError("the device is lost"), Panic("native")])
def test_a_fault_in_export_ends_that_save_alone(
    error: BaseException, store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_model(blocks=options) as model:
        model.cache_kv(STEM)
        monkeypatch.setattr(saving, "BATCH_BYTES", 1)
        with monkeypatch.context() as patch:
            bend(patch, model, "export", error, after=2)
            saved: BlocksSaved = asyncio.run(beside(model, lambda: model.save_blocks_async(STEM)))
        # the blocks copied before the fault are kept and reported
        assert (saved.written, saved.tokens, len(store.blocks)) == (2, 128, 2)
        (warning,) = model.info.warnings
        assert str(error) in warning
        assert_right(model.next_token_logprobs_sync([*STEM, 1]), [*STEM, 1])
        assert model.save_blocks(STEM).tokens == 300
        assert engine_of(model).scheduler.cache.kv_budget.in_transfer == 0
        audit(model)


def test_a_full_device_ends_a_save_without_a_warning(
    store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_model(blocks=options) as model:
        model.cache_kv(STEM)
        with monkeypatch.context() as patch:
            bend(patch, model, "export", MemoryBudgetError("the device is full"))
            assert model.save_blocks(STEM).tokens == 0
        assert model.info.warnings == ()
        assert not store.blocks
        assert model.save_blocks(STEM).tokens == 300
        audit(model)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("error", [RuntimeError("the device is lost"), Panic("native")])
@pytest.mark.parametrize("member", ["restore", "load"])
@pytest.mark.parametrize("after", [0, 1])
def test_kv_that_fails_to_restore_is_computed_instead(
    member: str, after: int, error: BaseException, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_model(blocks=options) as model:
        model.cache_kv(STEM)
        model.save_blocks(STEM)
    path = [*STEM, 9]
    with fake_model(blocks=options) as model:
        monkeypatch.setattr("runtime.scheduler.kv.restoring.BATCH_BYTES", 1)
        with monkeypatch.context() as patch:
            bend(patch, model, member, error, after)
            row = asyncio.run(beside(model, lambda: model.next_token_logprobs(path)))
        assert_right(row, path)
        (warning,) = model.info.warnings
        assert str(error) in warning
        assert_right(model.next_token_logprobs_sync([*STEM, 8]), [*STEM, 8])
        assert engine_of(model).scheduler.cache.kv_budget.in_transfer == 0
        assert settled(model)[1].leased_bytes == 0
        audit(model)


def test_queries_that_wait_for_a_failed_restore_are_computed(options: BlockOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_model(blocks=options) as model:
        model.cache_kv(STEM)
        model.save_blocks(STEM)
    with fake_model(blocks=options) as model:
        paths = [[*STEM, *some_ids(seed, 30)] for seed in range(4)]
        with monkeypatch.context() as patch:
            bend(patch, model, "restore", RuntimeError("the device is lost"))
            rows = model.batch_next_token_logprobs_sync(paths)
        for row, path in zip(rows, paths, strict=True):
            assert_right(row, path)
        audit(model)


def test_a_save_without_room_waits_and_does_not_spin(
    store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reached = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "put":
            reached.set()
            assert gate.wait(20)

    async def play(model: LanguageModel) -> BlocksSaved:
        task = asyncio.create_task(model.save_blocks_async(ids))
        await asyncio.to_thread(reached.wait, 20)
        scheduler = engine_of(model).scheduler
        begun = engine_of(model).call(lambda: scheduler.steps).result()
        for _ in range(3):
            await asyncio.sleep(0.05)
        busy, steps = engine_of(model).call(lambda: (scheduler.blocks.busy, scheduler.steps)).result()
        assert not busy
        assert steps - begun <= 3  # the calls of this loop, and steps under way
        gate.set()
        return await task

    monkeypatch.setattr(saving, "BATCH_BYTES", 64 * KV)
    ids = some_ids(1, 1000)
    with fake_model(blocks=options, kv_cache_bytes=KV * 6000) as model:
        model.cache_kv(ids)
        trie, workspaces = engine_of(model).scheduler.cache.trie, engine_of(model).scheduler.cache.workspaces
        engine_of(model).call(workspaces.drop_idle).result()
        job = local(model).operations.path(np.array(ids, np.int32), None)
        held = engine_of(model).call(lambda: trie.lookup(job.spans(job.ids))).result()
        model.set_kv_budget(trie.leased_bytes + KV * 64 * 3 // 2)  # room for one block's copy
        store.before = hold
        assert asyncio.run(play(model)).tokens == 1000
        engine_of(model).call(held.release).result()
        audit(model)


def test_blocks_that_the_store_drops_are_not_reported_as_written(
    store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryBlocks.put

    def full(self: MemoryBlocks, blocks: Any, **kwargs: Any) -> int:
        return real(self, blocks[: max(3 - len(self.blocks), 0)], **kwargs)

    monkeypatch.setattr(MemoryBlocks, "put", full)
    with fake_model(blocks=options) as model:
        model.cache_kv(STEM)
        saved = model.save_blocks(STEM)
        assert (saved.blocks, saved.written, saved.tokens) == (5, 3, 192)
    with fake_model(blocks=options) as model:
        assert model.prefix_match(STEM).tokens == 192


@pytest.mark.parametrize("where", ["leading", "put"])
def test_a_save_interrupted_by_closing_the_model_reports_the_tokens_saved(
    where: str, store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reached = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == where and (where == "leading" or len(store.blocks) >= 2):
            reached.set()
            gate.wait(20)

    monkeypatch.setattr(saving, "BATCH_BYTES", 1)
    monkeypatch.setattr("runtime.scheduler.kv.blocks.CLOSE_SECONDS", 0.01)
    with load("anything", backend="fake", blocks=options) as model:
        model.cache_kv(STEM)
        store.before = hold
        future = local(model).files.save_blocks(np.array(STEM, np.int32), None, None)
        assert reached.wait(20)
        future.add_done_callback(lambda _: gate.set())
        model.close()
    assert future.result(5).tokens == (0 if where == "leading" else 128)


def test_block_calls_on_a_closed_model_raise_session_closed_error(options: BlockOptions) -> None:
    keys, path = [bytes(32)], Path("other.db")

    async def ask(work: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(SessionClosedError, match="the model is closed; load it again"):
            await asyncio.wait_for(work, 5)

    with load("anything", backend="fake", blocks=options) as model:
        model.close()
        asyncio.run(ask(model.copy_blocks_async(keys, path)))
        asyncio.run(ask(model.take_blocks_async(keys, path)))
        asyncio.run(ask(model.pin_blocks_async("kept", keys)))
        with pytest.raises(SessionClosedError):
            model.copy_blocks(keys, path)
        with pytest.raises(SessionClosedError):
            model.take_blocks(keys, path)
        with pytest.raises(SessionClosedError):
            model.pin_blocks("kept", keys)
