"""KV into the block file: only new blocks, in the background, and faults there do not affect requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import load
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.errors import BlockFileError, InvalidRequestError, MemoryBudgetError, UnsupportedFeatureError
from runtime.info import BlocksSaved
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.load import BlockOptions
from runtime.scheduler.kv import saving
from tests.block_stores import MemoryBlocks, memory_options
from tests.fakes import assert_right, engine_of, fake_model, local, some_ids, until
from tests.runtime.model.trouble import audit

GREEDY = GenerationOptions(max_tokens=40, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)


def lengths(store: MemoryBlocks) -> list[int]:
    return sorted(tokens for _, tokens, _ in store.blocks.values())


def held_by(gate: threading.Event, seconds: float) -> Callable[[str], None]:
    """Nothing is written before the gate opens, or the time is over."""

    def hold(name: str) -> None:
        if name == "put":
            gate.wait(seconds)

    return hold


def test_a_path_is_written_once_and_then_only_its_new_blocks(store: MemoryBlocks, options: BlockOptions) -> None:
    ids = some_ids(1, 200)
    with fake_model(blocks=options) as model:
        model.cache_kv(ids[:100])
        first = model.save_blocks(ids[:100])
        assert (first.blocks, first.written, first.tokens) == (2, 2, 100)
        assert first.bytes == store.nbytes
        assert model.save_blocks(ids[:100]).written == 0
        # when the longer path replaces the shorter one, the short block at the old end is deleted
        model.cache_kv(ids)
        assert lengths(store) == [36, 64]
        second = model.save_blocks(ids, replaces=100)
        assert (second.blocks, second.written, second.tokens) == (4, 3, 200)
        assert lengths(store) == [8, 64, 64, 64]
        metrics = model.metrics()
        assert metrics.blocks_saved == 5
        assert metrics.block_bytes_saved == first.bytes + second.bytes
    assert store.threads == {"elsewise-blocks"}
    until(lambda: store.closed)  # the model waits a second or two for it, no longer
    assert store.closed == 1


def test_the_short_block_at_an_end_that_is_not_replaced_stays(store: MemoryBlocks, options: BlockOptions) -> None:
    ids = some_ids(1, 200)
    with fake_model(blocks=options) as model:
        for end in (70, 100):
            model.cache_kv(ids[:end])
            model.save_blocks(ids[:end])
        model.cache_kv(ids)
        model.save_blocks(ids, replaces=70)
    assert lengths(store) == [8, 36, 64, 64, 64]
    with fake_model(blocks=options) as model:
        assert model.prefix_match(ids[:100]).tokens == 100
        for wrong in (0, 201, -1, 1.5, True):
            with pytest.raises(InvalidRequestError, match="replaces counts leading tokens"):
                model.save_blocks(ids, replaces=wrong)  # type: ignore[arg-type]  # what a caller may get wrong


def test_only_kv_in_memory_is_written(store: MemoryBlocks, options: BlockOptions) -> None:
    with fake_model(blocks=options) as model:
        assert model.save_blocks(some_ids(1, 90)) == BlocksSaved(0, 0, 0, 0, 0.0, 0.0)
        model.cache_kv(some_ids(1, 90))
        assert model.save_blocks(some_ids(1, 300)).tokens == 90
    assert lengths(store) == [26, 64]


def test_branches_and_sessions_share_the_blocks_of_their_stem(store: MemoryBlocks, options: BlockOptions) -> None:
    stem = some_ids(1, 640)
    with fake_model(blocks=options) as model:
        for seed in range(5):
            path = [*stem, *some_ids(seed + 2, 64)]
            model.cache_kv(path)
            assert model.save_blocks(path).written == (11 if seed == 0 else 1)
    assert lengths(store) == [64] * 15


def test_a_turn_writes_five_blocks_at_most(store: MemoryBlocks, options: BlockOptions) -> None:
    ids = some_ids(1, 3000)
    with fake_model(blocks=options) as model:
        model.cache_kv(ids)
        model.save_blocks(ids)
        turn = [*ids, *some_ids(2, 200)]
        model.cache_kv(turn)
        saved = model.save_blocks(turn)
        assert saved.written <= 5
        assert saved.tokens == 3200


def test_each_slot_of_an_edge_is_copied_once(
    store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = FakeBackend.take

    def counted(self: FakeBackend, pack: Any, slots: Any) -> Any:
        taken.extend(slots)
        return take(self, pack, slots)

    monkeypatch.setattr(FakeBackend, "take", counted)
    stem = some_ids(1, 640)
    path = [*stem[:600], *some_ids(2, 30)]
    with fake_model(blocks=options) as model:
        model.cache_kv(stem)
        assert model.save_blocks(stem).written == 10
        assert sorted(taken) == list(range(640))
        # and of a text that branches within a block, only that block
        model.cache_kv(path)
        taken.clear()
        assert model.save_blocks(path).written == 1
        assert taken == [*range(576, 600), *range(640, 670)]


def test_kv_that_was_moved_in_memory_is_saved_from_its_new_place(options: BlockOptions) -> None:
    stem, room = some_ids(1, 300), 400 * 2 * 16 * 8  # bytes of one token's KV in the fake model
    beside = [*stem[:50], *some_ids(2, 200)]

    async def play() -> None:
        # given a text stored after another one, which is evicted while a stream holds slot numbers of their pack
        await model.cache_kv_async(beside)
        await model.cache_kv_async(stem)
        async with aclosing(model.generate([*stem, 7], replace(GREEDY, max_tokens=4000))) as records:
            await anext(records)
            await model.set_kv_budget_async(room)
            assert (await model.prefix_match_async(beside)).tokens < 200
            await model.set_kv_budget_async(10 * room)
            assert (await model.save_blocks_async(stem)).tokens == 300
            await anext(records)

    with fake_model(blocks=options) as model:
        asyncio.run(play())
    with fake_model(blocks=options) as model:
        assert_right(model.next_token_logprobs_sync([*stem, 7]), [*stem, 7])
        assert model.metrics().tokens_restored == 300


@pytest.mark.parametrize("full_at", [0, 2])  # copies, one for each part of a block
def test_a_full_device_evicts_no_path_while_a_block_of_it_is_copied(
    full_at: int, store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = 0
    take = FakeBackend.take

    def full_once(self: FakeBackend, pack: Any, slots: Any) -> Any:
        nonlocal copies
        copies += 1
        if copies == full_at + 1:
            raise MemoryBudgetError("out of memory")
        return take(self, pack, slots)

    # given a path in several edges, which no request uses, beside another one
    ids = some_ids(1, 200)
    with fake_model(blocks=options) as model:
        for end in (70, 100, 150):
            model.cache_kv([*ids[:end], 3, 4])
        model.cache_kv(ids)
        model.cache_kv(some_ids(2, 50))
        # when the device is full in the middle of a copy, so that unused KV is evicted
        monkeypatch.setattr(FakeBackend, "take", full_once)
        saved = model.save_blocks(ids)
        # then the path is saved all the same
        assert (saved.written, saved.tokens) == (4, 200)
        assert copies > full_at + 1
        assert not model.prefix_match(some_ids(2, 50)).tokens
        assert not model.info.warnings
        audit(model)
    with fake_model(blocks=options) as model:
        assert_right(model.next_token_logprobs_sync([*ids, 7]), [*ids, 7])
        assert model.metrics().tokens_restored == 200


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_path_that_is_evicted_during_a_save_is_saved_up_to_there(
    recurrent: bool, options: BlockOptions, store: MemoryBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evict(name: str) -> None:
        if name == "put" and len(store.blocks) == 2:
            trie = engine_of(model).scheduler.cache.trie
            engine_of(model).call(lambda: trie.evict(trie.bytes // 2)).result(20)

    ids = some_ids(1, 1000)
    monkeypatch.setattr(saving, "BATCH_BYTES", 1)
    with fake_model(Behaviour(recurrent=recurrent), blocks=options) as model:
        for end in (300, 600, 1000):
            model.cache_kv(ids[:end])
        store.before = evict
        saved = model.save_blocks(ids)
        assert 128 <= saved.tokens < 1000
        audit(model)
    store.before = lambda _: None
    with fake_model(Behaviour(recurrent=recurrent), blocks=options) as model:
        assert_right(model.next_token_logprobs_sync([*ids, 7]), [*ids, 7], "recurrent" if recurrent else "attention")
        restored = model.metrics().tokens_restored
        assert 0 < restored <= saved.tokens if recurrent else restored == saved.tokens


def test_a_recurrent_model_keeps_its_checkpoints_beside_the_blocks(store: MemoryBlocks, options: BlockOptions) -> None:
    ids = some_ids(1, 150)
    with fake_model(Behaviour(recurrent=True), blocks=options) as model:
        for end in (70, 100, 150):
            model.cache_kv(ids[:end])
        model.save_blocks(ids)
    # 64 + 64 of the grid, and the blocks that end at 70, 100 and 150
    assert lengths(store) == [6, 22, 36, 64, 64]
    with fake_model(Behaviour(recurrent=True), blocks=options) as model:
        for end, held in ((150, 150), (149, 100), (99, 70), (69, 0)):
            assert model.prefix_match(ids[:end]).tokens == held


def test_streams_go_on_while_a_long_path_is_written(store: MemoryBlocks, options: BlockOptions) -> None:
    gate = threading.Event()
    ids = some_ids(1, 5000)

    async def play() -> list[int]:
        saving = asyncio.create_task(model.save_blocks_async(ids))
        said = [record.token_id async for record in model.generate([5, 6, 7], GREEDY)]
        assert not saving.done()  # the store has not answered yet
        gate.set()
        assert (await saving).tokens == 5000
        return said

    with fake_model(blocks=options) as model:
        alone = [record.token_id for record in model.generate_sync([5, 6, 7], GREEDY)]
        model.clear_cache()
        model.cache_kv(ids)
        store.before = held_by(gate, 20)
        assert asyncio.run(play()) == alone
        audit(model)


def test_cancelling_a_save_stops_it(store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, gate = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "put":
            reached.set()
            assert gate.wait(20)

    async def play() -> None:
        saving = asyncio.create_task(model.save_blocks_async(ids))
        await asyncio.to_thread(reached.wait, 20)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        gate.set()

    ids = some_ids(1, 1000)
    monkeypatch.setattr(saving, "BATCH_BYTES", 1)
    with fake_model(blocks=options) as model:
        model.cache_kv(ids)
        store.before = hold
        asyncio.run(play())
        store.before = lambda _: None
        assert model.prefix_match(ids).tokens == 1000
        assert len(store.blocks) <= 3  # those copied already
        assert model.save_blocks(ids).tokens == 1000
        assert engine_of(model).scheduler.cache.kv_budget.in_transfer == 0
        audit(model)


def test_a_full_disk_gives_one_warning_and_the_model_goes_on(store: MemoryBlocks, options: BlockOptions) -> None:
    def full(name: str) -> None:
        if name == "put":
            raise OSError(28, "No space left on device")

    store.before = full
    ids = some_ids(1, 200)
    with fake_model(blocks=options) as model:
        model.cache_kv(ids)
        for _ in range(2):
            saved = model.save_blocks(ids)
            assert (saved.written, saved.tokens) == (0, 0)
        (warning,) = model.info.warnings
        assert "No space left on device" in warning
        assert_right(model.next_token_logprobs_sync([*ids, 1]), [*ids, 1])
        # when there is room again, it is saved after all
        store.before = lambda _: None
        assert model.save_blocks(ids).written == 4
        audit(model)


def test_a_file_that_cannot_be_opened_is_a_warning() -> None:
    for factory in ("tests.block_stores:open_broken", "tests.block_stores:nothing", "no_such_module:open"):
        with fake_model(blocks=BlockOptions(factory, "x")) as model:
            ids = some_ids(1, 100)
            assert_right(model.next_token_logprobs_sync(ids), ids)
            with pytest.raises(BlockFileError, match="the block file cannot be used: "):
                model.save_blocks(ids)
            with pytest.raises(BlockFileError, match="the block file cannot be used: "):
                model.pin_blocks("a", [])
            with pytest.raises(BlockFileError, match="the block file cannot be used: "):
                model.copy_blocks([b"a"], "y")
            assert model.prefix_match([*ids, 1]).tier == "warm"
            assert "block file" in model.info.warnings[0]


def open_late(path: str, budget: int = 0) -> MemoryBlocks:
    """A factory that fails once the model has sent it a request already."""
    time.sleep(0.3)
    raise OSError(5, "Input/output error", path, None, budget and None)


def test_requests_to_a_block_file_before_it_failed_to_open_add_no_warning() -> None:
    with fake_model(blocks=BlockOptions(f"{__name__}:open_late", "x")) as model:
        ids = some_ids(1, 100)
        assert_right(model.next_token_logprobs_sync(ids), ids)
        (warning,) = model.info.warnings
        assert "Input/output error" in warning


def test_closing_drops_blocks_that_were_not_copied_yet(
    store: MemoryBlocks, options: BlockOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, gate = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "put":
            reached.set()
            assert gate.wait(20)

    monkeypatch.setattr(saving, "BATCH_BYTES", 1)
    with load("anything", backend="fake", blocks=options) as model:
        model.cache_kv(some_ids(1, 1000))
        store.before = hold
        future = local(model).files.save_blocks(np.array(some_ids(1, 1000), np.int32), None, None)
        assert reached.wait(20)
        future.add_done_callback(lambda _: gate.set())
    assert future.result(5).tokens == 0  # no block was confirmed when it was closed
    until(lambda: store.closed)
    assert 0 < len(store.blocks) <= 3  # those copied already
    assert store.closed == 1


def test_without_a_block_file_there_is_nothing_to_save_to() -> None:
    with fake_model() as model, pytest.raises(UnsupportedFeatureError, match="without blocks"):
        model.save_blocks([1, 2])
    with (
        fake_model(cache=False, blocks=memory_options("off")) as model,
        pytest.raises(UnsupportedFeatureError, match="a cache"),
    ):
        model.save_blocks([1, 2])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (7, "blocks is BlockOptions"),
        ({"factory": "a:b"}, "a factory .* and a path"),
        ({"factory": "ab", "path": "x"}, "factory is 'package.module:name', not 'ab'"),
        ({"factory": "a:b", "path": ""}, "path is the path of a file"),
        ({"factory": "a:b", "path": "x", "budget": 0}, "blocks: budget must be a whole number, 1 or more, not 0"),
        ({"factory": "a:b", "path": "x", "bugdet": 1}, "did you mean 'budget'"),
    ],
)
def test_invalid_block_options_are_refused(given: object, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        load("anything", "fake", blocks=given)


def test_ids_are_checked_before_anything_else(options: BlockOptions, tmp_path: Path) -> None:
    with fake_model(blocks=options) as model:
        for ask in (model.save_blocks, lambda ids: model.kv_snapshot(ids, tmp_path / "x")):
            with pytest.raises(InvalidRequestError, match="999 at position 1"):
                ask([1, 999])
    assert not list(tmp_path.iterdir())
