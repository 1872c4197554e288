"""Bits that flip anywhere in the file: named, never silent, and the other sessions still open."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import SessionStore, StoreError, salvage
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
def test_no_flipped_bit_of_many_is_silent(path: Path, tell: Callable[[str], None]) -> None:
    outcomes = sweep(path, flips=600, seed=2)
    tell(f"bit flips: {dict(outcomes)}")
    assert not outcomes["SILENT"], outcomes
    assert sum(count for name, count in outcomes.items() if name.startswith("named")) > 100


# ---- the others ---------------------------------------------------------------------------------------------------------


async def one(store: SessionStore, session_id: int) -> object:
    """All that a session says; what kind of error, where it cannot be read."""
    try:
        tree = await store.load_session(session_id)
        tokens = await store.load_tokens([node.id for node in tree.nodes])
    except StoreError as error:
        return type(error).__name__
    said = [(node.role, node.text, node.status, node.token_count, node.damaged) for node in tree.nodes]
    return (tree.session.title, said, [[{n: c.tobytes() for n, c in t.columns.items()} for t in v] for v in tokens.values()])


async def each(store: SessionStore) -> dict[str, object]:
    """Every session that is listed, by its title."""
    return {row.title: await one(store, row.id) for row in await store.sessions()}


def readable(path: Path, flips: int, seed: int) -> Counter[str]:
    """Flips one bit at a time; fails when that costs more than one session, or one that is not named."""
    with_store(path, fill)
    whole, sound = path.read_bytes(), with_store(path, each)
    rng, outcomes = random.Random(seed), Counter[str]()
    for flip in range(flips):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        copy = path.with_name(f"{flip}.sqlite3")
        copy.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        where = f"bit {bit} of byte {at:,}"
        try:
            store = SessionStore.open(copy)
        except StoreError:  # what can be read goes into a new file then, see `app.rescue`
            salvage(copy)
            now, outcome = with_store(copy, each), "salvaged"
        else:
            now, named = asyncio.run(look(store))
            store.close_sync()
            hurt = {title for title, said in sound.items() if now.get(title) != said}
            assert hurt <= named, where
            outcome = "one is hurt" if hurt else "none is hurt"
        lost = [title for title, said in sound.items() if now.get(title) != said]
        assert len(lost) <= 1, f"{where}: {outcome}, {lost}"
        outcomes[outcome] += 1
    return outcomes


async def look(store: SessionStore) -> tuple[dict[str, object], set[str | None]]:
    """What every session says, and the titles of those that `verify` names; a damaged title is what it was before."""
    named = {row.session_id for row in await store.verify()}
    now = await each(store)
    titles = {row.id: f"chat {row.id - 1}" for row in await store.sessions()}
    return now, {titles.get(number) for number in named if number is not None}


def test_a_flipped_bit_costs_the_other_sessions_nothing(path: Path) -> None:
    outcomes = readable(path, flips=20, seed=3)
    assert outcomes["one is hurt"], outcomes


@pytest.mark.slow
def test_a_flipped_bit_of_many_costs_the_other_sessions_nothing(path: Path, tell: Callable[[str], None]) -> None:
    outcomes = readable(path, flips=300, seed=4)
    tell(f"bit flips and the other sessions: {dict(outcomes)}")
    assert outcomes["one is hurt"] > 30
    assert outcomes["salvaged"]


def test_a_list_that_cannot_be_read_is_told_of_at_opening(path: Path) -> None:
    """Whatever bit flips in the header of one of its rows: it is read, or refused before anybody works with it."""
    with_store(path, fill)
    whole = path.read_bytes()
    title = whole.index(b"chat 3")
    refused = 0
    for at in range(title - 24, title):
        for bit in (0, 6, 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
            try:
                store = SessionStore.open(path)
            except StoreError:
                refused += 1
                continue
            try:
                assert len(asyncio.run(store.sessions())) >= SESSIONS - 1, f"bit {bit} of byte {at:,}"
            finally:
                store.close_sync()
    assert refused
