"""Recorded sessions: read from the file, stored, and read again."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
from pathlib import Path

import numpy as np

from app.sample import FILE, ensure_sample, first_sample, run_from
from runtime import Origin, SamplingOptions, TokenRun, replay_draw
from storage import SessionStore
from tests.storage.helpers import sql
from tests.tools.record_sample import run_to


def test_a_recorded_run_is_read_unchanged() -> None:
    recorded = json.loads(importlib.resources.files("resources").joinpath(FILE).read_text("utf-8"))
    for node in recorded["nodes"]:
        run = run_from(node["tokens"])
        assert run_to(run) == node["tokens"]
        assert (np.isneginf(run.top_logprobs) == (run.top_ids < 0)).all()


def test_every_drawn_token_of_the_sample_is_repeated_from_its_stored_stages(tmp_path: Path) -> None:
    store = SessionStore.open(tmp_path / "sessions.db")

    async def runs() -> list[TokenRun]:
        tree = await store.load_session(await ensure_sample(store))
        chunks = await store.load_tokens([node.id for node in tree.nodes])
        return [TokenRun.from_columns(chunk.columns) for tiles in chunks.values() for chunk in tiles]

    try:
        records = [record for run in asyncio.run(runs()) for record in run if record.origin is Origin.SAMPLED]
    finally:
        store.close_sync()
    assert len(records) > 90
    for record in records:
        assert record.redrawn == record.token_id
        assert len(record.top_ids) >= 64
        assert record.stages is not None
        assert [stage.name for stage in record.stages] == ["raw", "temperature", "top_p", "min_p", "draw"]
        again = replay_draw(record, SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05))
        assert again.token == record.token_id


def test_the_sample_is_added_once_and_an_existing_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"

    async def twice(store: SessionStore) -> tuple[int, int, int]:
        first, second = await ensure_sample(store), await ensure_sample(store)
        return first, second, len(await store.sessions())

    for _ in range(2):
        store = SessionStore.open(path)
        first, second, count = asyncio.run(twice(store))
        store.close_sync()
        assert (first, count) == (second, 1)


def test_alternatives_of_the_sample_can_be_read_without_a_model(tmp_path: Path) -> None:
    store = SessionStore.open(tmp_path / "sessions.db")

    async def check() -> None:
        sample = await ensure_sample(store)
        tokens = await store.vocabulary(await store.setting("vocabulary"))
        assert tokens is not None
        tree = await store.load_session(sample)
        for chunks in (await store.load_tokens([node.id for node in tree.nodes])).values():
            for chunk in chunks:
                ids = np.unique(TokenRun.from_columns(chunk.columns).top_ids).tolist()
                assert all(tokens[i] for i in ids if i >= 0)

    try:
        asyncio.run(check())
    finally:
        store.close_sync()


def test_a_deleted_sample_is_not_added_again(tmp_path: Path) -> None:
    async def scene() -> None:
        store = SessionStore.open(tmp_path / "sessions.db")
        sample = await first_sample(store)
        assert sample is not None
        assert await first_sample(store) == sample
        await store.trash_session(sample)
        assert await first_sample(store) is None
        sql(store.path, "UPDATE settings SET value = '0' WHERE key IN ('sample', 'vocabulary')")
        again = await first_sample(store)  # without a record that it was added before, the app starts with it
        assert await first_sample(store) == again is not None
        await store.close()

    asyncio.run(scene())
