"""Flipped bits anywhere in the file: detected and named, and the other sessions still open."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from storage import SessionStore, StoreError
from tests.reliability.damage import SESSIONS, fill, flips_of_sessions
from tests.reliability.suite import Order
from tests.storage.helpers import with_store


def test_a_broken_page_affects_one_session_only(path: Path) -> None:
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


@pytest.mark.slow
def test_a_flipped_bit_is_always_named_and_never_affects_other_sessions(tmp_path: Path) -> None:
    tally = flips_of_sessions(Order(1, 25, tmp_path))
    assert tally.failures == []
    assert any(outcome.startswith("named") for outcome in tally.seen), tally.seen


@pytest.mark.slow
def test_a_bit_flip_in_the_session_list_is_refused_at_opening_or_loses_at_most_one_row(path: Path) -> None:
    """With any flipped bit in the header of one of its rows, the list is read, or the store is refused at opening."""
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
