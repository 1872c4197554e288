"""KV that outlives the engine process: two processes share a block file, and only names and counts cross the pipe."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import (
    BlockFileError,
    BlockOptions,
    BlocksSaved,
    InvalidRequestError,
    LanguageModel,
    RuntimeFault,
    SnapshotMismatchError,
    UnsupportedFeatureError,
    block_keys,
    load,
    spawn,
)
from tests.fakes import some_ids

IDS = some_ids(1, 300)


def blocks(path: Path) -> dict[str, Any]:
    return {"factory": "storage:open_blocks", "path": str(path), "budget": 1 << 30}


def test_a_second_process_reuses_the_kv_saved_by_the_first(tmp_path: Path) -> None:
    async def first() -> np.ndarray[Any, Any]:
        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "b.db")) as model:
            await model.cache_kv_async(IDS)
            saved = await model.save_blocks_async(IDS)
            assert (saved.blocks, saved.written, saved.tokens) == (5, 5, 300)
            assert model.metrics().blocks_saved == 5
            return await model.next_token_logprobs([*IDS, 1, 2])

    async def second() -> None:
        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "b.db")) as model:
            match = await model.prefix_match_async(IDS)
            assert (match.tokens, match.tier, match.warm) == (300, "disk", 0)
            np.testing.assert_allclose(await model.next_token_logprobs([*IDS, 1, 2]), fresh, atol=1e-5, rtol=0)
            assert model.metrics().tokens_restored == 300
            assert model.metrics().tokens_computed == 2
            match = await model.prefix_match_async([*IDS, 1])
            assert (match.tokens, match.tier) == (301, "warm")
            assert model.info.warnings == ()

    fresh = asyncio.run(first())
    asyncio.run(second())


def test_a_block_with_a_flipped_byte_on_disk_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "b.db"
    with load("anything", "fake", blocks=BlockOptions(**blocks(file))) as model:
        model.cache_kv(IDS)
        model.save_blocks(IDS)
        fresh = model.next_token_logprobs_sync([*IDS, 1])
    with closing(sqlite3.connect(file)) as conn:
        (place, data) = conn.execute("SELECT id, data FROM kv_chunks ORDER BY id LIMIT 1 OFFSET 2").fetchone()
        bent = bytearray(data)
        bent[len(bent) // 2] ^= 1
        conn.execute("UPDATE kv_chunks SET data = ? WHERE id = ?", [bytes(bent), place])
        conn.commit()
    with load("anything", "fake", blocks=blocks(file)) as model:
        np.testing.assert_allclose(model.next_token_logprobs_sync([*IDS, 1]), fresh, atol=1e-5, rtol=0)
        assert (model.metrics().tokens_restored, model.metrics().tokens_computed) == (128, 301 - 128)
        # and the block is saved again
        assert model.save_blocks(IDS).tokens == 300


@pytest.mark.slow
def test_an_invalid_block_file_is_a_warning_and_does_not_stop_the_engine(tmp_path: Path) -> None:
    (tmp_path / "b.db").mkdir()

    async def play() -> None:
        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "b.db")) as model:
            await model.next_token_logprobs(IDS)
            with pytest.raises(BlockFileError, match=r"b\.db: it is no regular file; move it away"):
                await model.save_blocks_async(IDS)
            assert "block file" in model.info.warnings[0]

    asyncio.run(play())


@pytest.mark.slow
def test_snapshots_are_written_and_read_by_the_engine_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def play() -> None:
        async with await spawn("anything", "fake") as model:
            assert await model.kv_snapshot_async(IDS, "kept") == (tmp_path / "kept").stat().st_size
            await model.clear_cache_async()
            assert await model.kv_restore_async("kept", upto=200) == 200
            assert await model.kv_restore_async(Path("kept")) == 300
            assert (await model.prefix_match_async(IDS)).tokens == 300
            with pytest.raises(InvalidRequestError, match="upto counts"):
                await model.kv_restore_async("kept", upto=0)
        async with await spawn("anything", "mock") as model:
            with pytest.raises(SnapshotMismatchError, match="another backend: 'fake', this model has 'mock'"):
                await model.kv_restore_async("kept")

    asyncio.run(play())


@pytest.mark.slow
def test_blocks_copied_while_the_engine_runs_are_reused_by_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.engine.kv_files.COPIED_AT_ONCE", 2)  # in this process; the engine copies in one go

    async def play() -> None:
        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "b.db")) as model:
            await model.cache_kv_async(IDS)
            await model.save_blocks_async(IDS)
            keys = block_keys(model.info.kv_fingerprint, IDS)
            assert await model.copy_blocks_async([*keys, b"x" * 32], tmp_path / "copy.db") == 5
            assert await model.copy_blocks_async([], tmp_path / "none.db") == 0
        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "copy.db")) as other:
            await other.next_token_logprobs([*IDS, 1])
            assert (other.metrics().tokens_restored, other.metrics().tokens_computed) == (300, 1)

        async with await spawn("anything", "fake", blocks=blocks(tmp_path / "taken.db")) as third:
            assert await third.take_blocks_async([*keys, b"x" * 32], tmp_path / "copy.db") == 5
            assert await third.take_blocks_async(keys, tmp_path / "copy.db") == 5  # already held
            await third.next_token_logprobs([*IDS, 1])
            assert (third.metrics().tokens_restored, third.metrics().tokens_computed) == (300, 1)
            with pytest.raises(RuntimeFault, match=r"missing\.db"):
                await third.take_blocks_async(keys, tmp_path / "missing.db")

    asyncio.run(play())
    with load("anything", "fake", blocks=blocks(tmp_path / "b.db")) as model:
        assert model.copy_blocks(block_keys(model.info.kv_fingerprint, IDS), tmp_path / "parts.db") == 5
    with load("anything", "fake") as plain, pytest.raises(UnsupportedFeatureError, match="without blocks"):
        plain.copy_blocks([], tmp_path / "no.db")
    with load("anything", "fake") as plain, pytest.raises(UnsupportedFeatureError, match="without blocks"):
        plain.take_blocks([], tmp_path / "no.db")


def test_block_and_snapshot_arguments_cross_the_pipe_unchanged(client: LanguageModel) -> None:
    async def play() -> None:
        saved = BlocksSaved(3, 1, 3, 1, 0.5, 0.25)
        assert await client.save_blocks_async([1, 2, 3], adapters=["a"]) == saved
        assert client.save_blocks([1, 2, 3], adapters=["a"]) == saved
        assert client.save_blocks([1, 2, 3], replaces=2).written == 3
        assert (await client.save_blocks_async([1, 2, 3], replaces=1)).written == 2
        assert await client.kv_snapshot_async([1, 2], "abc") == client.kv_snapshot([1, 2], Path("abc")) == 5
        assert await client.copy_blocks_async([b"k"], "abc") == client.copy_blocks([b"k"], Path("abc")) == 4
        assert await client.take_blocks_async([b"k"], "abc") == client.take_blocks([b"k"], Path("abc")) == 5
        await client.pin_blocks_async("a", [b"k"])
        with pytest.raises(InvalidRequestError, match="2 keys"):
            client.pin_blocks("refused", [b"k", b"l"])
        assert await client.kv_restore_async("abc") == client.kv_restore(Path("abc")) == 3
        assert await client.kv_restore_async("abc", 7) == client.kv_restore("abc", upto=7) == 7

    asyncio.run(play())
