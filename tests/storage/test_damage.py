"""Bits that flip anywhere in the file: named, never silent, and the other sessions still open."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from storage import SessionStore, StoreError
from tests.storage.helpers import chat, with_store

SESSIONS = 6


async def everything(store: SessionStore) -> object:
    """All a person could see of the store."""
    seen: list[object] = []
    for session in await store.sessions():
        tree = await store.load_session(session.id)
        tokens = await store.load_tokens([node.id for node in tree.nodes])
        seen.append((tree, {k: [{n: c.tobytes() for n, c in t.columns.items()} for t in v] for k, v in tokens.items()}))
    return (seen, [[s.id for s in await store.sessions(word)] for word in ("answer", "where", "chat")])


async def fill(store: SessionStore) -> None:
    for i in range(SESSIONS):
        await chat(store, f"chat {i}", tokens=60)
    await store.save_vocabulary("digest", [b"token"] * 50)
    await store.set_setting("theme", "dark")


def test_a_broken_page_costs_one_session_only(path: Path) -> None:
    with_store(path, fill)
    raw = bytearray(path.read_bytes())
    leaf = next(at for at in range(4096, len(raw), 4096) if raw[at] == 0x0D and b"text_lengths" in raw[at : at + 4096])
    raw[leaf : leaf + 4096] = bytes([0xEE]) * 4096
    path.write_bytes(raw)

    async def look(store: SessionStore) -> None:
        assert len(await store.sessions()) == SESSIONS
        outcomes = Counter[str]()
        for session in await store.sessions():
            tree = await store.load_session(session.id)
            try:
                await store.load_tokens([node.id for node in tree.nodes])
                outcomes["read"] += 1
            except StoreError as error:
                outcomes[type(error).__name__] += 1
        assert outcomes["read"] >= 1
        assert outcomes["StoreDamagedError"] >= 1
        damage = await store.verify()
        assert {row.kind for row in damage} >= {"file", "session"}
        assert all(row.title for row in damage if row.kind == "session")

    with_store(path, look)


def sweep(path: Path, flips: int, seed: int) -> Counter[str]:
    """Flips one bit at a time; fails when a change that shows is not named by `verify`."""
    with_store(path, fill)
    whole, sound = path.read_bytes(), with_store(path, everything)
    rng, outcomes = random.Random(seed), Counter[str]()
    for _ in range(flips):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        try:
            store = SessionStore.open(path)
        except StoreError:
            outcomes["refused at opening"] += 1
            continue
        outcomes[asyncio.run(judge(store, sound))] += 1
        store.close_sync()
    return outcomes


async def judge(store: SessionStore, sound: object) -> str:
    named = bool(await store.verify())
    try:
        same = await everything(store) == sound
    except StoreError:
        return "named, part cannot be read" if named else "SILENT"
    if same:
        return "named, nothing shows" if named else "no effect"
    return "named" if named else "SILENT"


def test_no_flipped_bit_is_silent(path: Path) -> None:
    outcomes = sweep(path, flips=40, seed=1)
    assert not outcomes["SILENT"], outcomes
    assert outcomes["named"] + outcomes["named, nothing shows"], outcomes


@pytest.mark.slow
def test_no_flipped_bit_of_many_is_silent(path: Path) -> None:
    outcomes = sweep(path, flips=600, seed=2)
    print(f"bit flips: {dict(outcomes)}")  # noqa: T201  # the sweep says how much it swept
    assert not outcomes["SILENT"], outcomes
    assert sum(count for name, count in outcomes.items() if name.startswith("named")) > 100
