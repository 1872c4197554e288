"""Recorded sessions: out of the file, into the store, and back."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
from pathlib import Path

import numpy as np

from app.sample import FILE, ensure_sample, run_from, run_to
from storage import SessionStore


def test_a_recorded_run_comes_back_as_it_was_written() -> None:
    recorded = json.loads(importlib.resources.files("resources").joinpath(FILE).read_text("utf-8"))
    for node in recorded["nodes"]:
        run = run_from(node["tokens"])
        assert run_to(run) == node["tokens"]
        assert (np.isneginf(run.top_logprobs) == (run.top_ids < 0)).all()


def test_the_sample_is_put_once_and_stays_when_it_is_there(tmp_path: Path) -> None:
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
                ids = np.unique(chunk.columns["top_ids"]).astype(int).tolist()
                assert all(tokens[i] for i in ids if i >= 0)

    try:
        asyncio.run(check())
    finally:
        store.close_sync()
