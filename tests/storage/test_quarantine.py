"""Damaged rows are quarantined: the rest is intact, stays marked, and can be read, searched, exported and copied."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from storage import DamageRow, NewNode, SessionStore, StoreDamagedError, StoreError, export_json, export_portable, salvage
from tests.storage.helpers import chat, chunk, ids, sql, with_store
from tests.storage.transfer.trees import taken, unheard

OTHERS = 3


async def long_chat(store: SessionStore) -> int:
    """A session whose answer was saved in three chunks, with a branch that leaves it after the second one."""
    session = await store.create_session("Trip")
    user = await store.add_node(NewNode(session, None, "user", "Where to?"), chunk(0, 4), current=True)
    answer = await store.add_node(NewNode(session, user, "assistant", status="open"), current=True)
    for first in (0, 5, 10):
        await store.append_chunk(answer, chunk(first, 5))
    await store.finish_node(answer, finish_reason="eos", stats={"seed": 7}, text="all that was said")
    inside = NewNode(session, answer, "assistant", "another way", at_token=12, at_byte=9, turn_start=False)
    await store.add_node(inside, chunk(0, 2))
    await store.add_node(NewNode(session, answer, "user", "thanks"), chunk(0, 3), current=True)
    return session


async def fill(store: SessionStore) -> None:
    await long_chat(store)
    for i in range(OTHERS):
        await chat(store, f"chat {i}", tokens=30)
    await store.save_vocabulary("digest", [b"token"] * 50)
    await store.save_model("model-a", {"name": "A"})
    await store.set_setting("theme", "dark")
    await store.set_session_setup(1, {"preset": "calm"})
    folder = await store.places.create_folder("Travel")
    await store.places.move(1, folder)


async def aside(store: SessionStore) -> list[DamageRow]:
    """Quarantines the damaged rows; afterwards none is left, and a second call finds nothing."""
    assert await store.verify()
    found = await store.set_aside_damage()
    assert await store.verify() == []
    assert await store.set_aside_damage() == []
    assert await store.quarantined() == found
    return found


def test_lost_tokens_leave_the_text_and_the_tokens_before_them(path: Path, tmp_path: Path) -> None:
    # given: a flipped bit in the middle chunk of an answer
    with_store(path, fill)
    [(number, blob)] = sql(path, "SELECT id, columns FROM token_chunks WHERE node_id = 2 AND first = 5")
    sql(path, "UPDATE token_chunks SET columns = ? WHERE id = ?", blob[:40] + bytes([blob[40] ^ 4]) + blob[41:], number)

    # when
    found = with_store(path, aside)

    # then: it is named with its session and turn
    assert {(row.session_id, row.title, row.turn) for row in found} == {(1, "Trip", 2)}
    assert [row.detail for row in found] == [
        "5 tokens from 5 failed their checksum",
        "5 tokens from 10 stand behind lost ones",
        "10 of its 15 tokens are lost",
        "it left the run before it at token 12, which is lost",
    ]

    async def look(store: SessionStore) -> None:
        tree = await store.load_session(1)
        user, answer, inside, thanks = tree.nodes
        assert [node.damaged for node in tree.nodes] == [False, True, False, False]
        assert (answer.text, answer.token_count, answer.status) == ("all that was said", 5, "partial")
        assert (inside.parent_id, inside.at_token, inside.text) == (answer.id, 5, "another way")
        assert thanks.parent_id == answer.id
        tiles = (await store.load_tokens([answer.id]))[answer.id]
        assert ids(tiles) == [0, 1, 2, 3, 4]
        assert not any(tile.damaged for tile in tiles)
        assert [row.title for row in await store.sessions("said")] == ["Trip"]
        assert user.text == "Where to?"
        assert len(await store.sessions()) == 1 + OTHERS

    with_store(path, look)
    with_store(path, look)  # and after a restart
    # the quarantined row has the bytes as they were read
    [(content,)] = sql(path, "SELECT content FROM quarantine WHERE source = 'token_chunks' AND detail LIKE '%checksum'")
    kept: dict[str, Any] = msgspec.msgpack.decode(content)
    assert (kept["first"], kept["count"], kept["columns"][:40]) == (5, 5, blob[:40])
    # and the session can be exported and imported with its mark
    for name, export in (("trip.json", export_json), ("trip.elsewise", export_portable)):
        export(path, 1, tmp_path / name, unheard)
        [copy] = taken(path, tmp_path / name).sessions
        tree = with_store(path, lambda store, copy=copy: store.load_session(copy))  # type: ignore[misc]  # bound now
        assert [node.damaged for node in tree.nodes] == [False, True, False, False]
    assert with_store(path, lambda store: store.verify()) == []


def test_damaged_scores_alone_lose_no_token(path: Path) -> None:
    """An answer was rescored, and the new scores are damaged: the older ones count, and nothing is marked."""

    async def rescored(store: SessionStore) -> None:
        _, _, answer = await chat(store)
        await store.rescore(answer, chunk(0, 6, logprob=-9.0))

    with_store(path, rescored)
    sql(path, "UPDATE token_chunks SET summary = 'x' WHERE id = 3")
    [row] = with_store(path, aside)
    assert (row.kind, row.turn) == ("tokens", 2)

    async def look(store: SessionStore) -> None:
        assert not any(node.damaged for node in (await store.load_session(1)).nodes)
        assert float((await store.load_tokens([2]))[2][0].columns["logprob"][0]) == -1.25

    with_store(path, look)


def test_damaged_session_node_and_place_rows_lose_no_text(path: Path) -> None:
    with_store(path, fill)
    sql(path, "UPDATE sessions SET importing = 1, title = 'Trop', current_node = NULL WHERE id = 1")
    sql(path, "UPDATE nodes SET role = 'nobody', parent_id = 9, stats = '{', at_token = 99 WHERE id = 3")
    sql(path, "UPDATE places SET tags = 7 WHERE id = 1")
    sql(path, "UPDATE folders SET name = 'Trauel' WHERE id = 1")
    sql(path, "UPDATE settings SET value = '0' WHERE key = 'session/1'")
    sql(path, "DELETE FROM nodes WHERE id = 6")  # without the store: its tokens have no node now
    found = with_store(path, aside)
    assert {row.kind for row in found} == {"session", "node", "place", "folder", "setting", "tokens"}

    async def look(store: SessionStore) -> None:
        assert len(await store.sessions()) == 1 + OTHERS
        nodes = (await store.load_session(1)).nodes
        assert [node.text for node in nodes] == ["Where to?", "all that was said", "another way", "thanks"]
        assert (nodes[2].parent_id, nodes[2].damaged, nodes[2].role) == (None, True, "user")
        await store.add_node(NewNode(1, nodes[-1].id, "user", "more"))
        assert await store.session_setup(1) is None
        assert [folder.name for folder in await store.places.folders()] == ["Trauel"]
        await store.places.move(1, 1)
        assert await store.verify() == []

    with_store(path, look)


def test_quarantined_rows_are_deleted_with_their_session(path: Path) -> None:
    with_store(path, fill)
    sql(path, "UPDATE nodes SET text = 'forged' WHERE id = 2")
    with_store(path, aside)

    async def throw_away(store: SessionStore) -> None:
        await store.trash_session(1)
        assert await store.empty_trash([1]) == 1
        assert await store.quarantined() == []

    with_store(path, throw_away)


def test_a_broken_page_is_left_to_recovery_which_keeps_the_quarantine(path: Path) -> None:
    with_store(path, fill)
    sql(path, "UPDATE nodes SET text = 'forged' WHERE id = 2")
    found = with_store(path, aside)
    raw = bytearray(path.read_bytes())
    leaf = next(at for at in range(4096, len(raw), 4096) if raw[at] == 0x0D and b"text_lengths" in raw[at : at + 4096])
    raw[leaf : leaf + 4096] = bytes([0xEE]) * 4096
    path.write_bytes(raw)
    with pytest.raises(StoreDamagedError, match="nothing was set aside, `elsewise sessions recover` helps"):
        with_store(path, lambda store: store.set_aside_damage())
    salvage(path)

    async def recovered(store: SessionStore) -> None:
        assert set(found) <= set(await store.quarantined())
        await store.set_aside_damage()
        assert await store.verify() == []

    with_store(path, recovered)


def sweep(path: Path, flips: int, seed: int) -> Counter[str]:
    """Flips one bit at a time; afterwards all named damage is quarantined, and no intact turn is lost."""
    with_store(path, fill)
    whole, texts = path.read_bytes(), with_store(path, said)
    rng, outcomes = random.Random(seed), Counter[str]()
    for _ in range(flips):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        try:
            store = SessionStore.open(path)
        except StoreError:
            outcomes["refused at opening"] += 1
            continue
        try:
            outcomes[asyncio.run(judge(store, texts))] += 1
        finally:
            store.close_sync()
    return outcomes


async def said(store: SessionStore) -> Counter[str]:
    """The texts of all turns without a damage mark."""
    sessions = [row.id for row in await store.sessions()]
    trees = [await store.load_session(each) for each in sessions]
    return Counter(node.text for tree in trees for node in tree.nodes if not node.damaged)


async def judge(store: SessionStore, texts: Counter[str]) -> str:
    if not await store.verify():
        return "no effect"
    try:
        found = await store.set_aside_damage()
    except StoreDamagedError:
        return "for recovery"
    left = await store.verify()
    now = await said(store)
    marked = {row.node_id for row in found if row.kind in ("node", "tokens")}
    if left or (texts - now).total() > len(marked) or now - texts:
        return f"WRONG: {left or (texts - now, now - texts)}"
    return "set aside" if found else "mended"


@pytest.mark.slow
def test_damage_of_a_flipped_bit_is_quarantined_without_loss_of_intact_turns(path: Path) -> None:
    outcomes = sweep(path, flips=30, seed=3)
    assert not [name for name in outcomes if name.startswith("WRONG")], outcomes
    assert outcomes["set aside"], outcomes


@pytest.mark.slow
def test_damage_of_many_single_bit_flips_is_quarantined_without_loss_of_intact_turns(
    path: Path, tell: Callable[[str], None]
) -> None:
    outcomes = sweep(path, flips=300, seed=4)
    tell(f"bit flips, set aside: {dict(outcomes)}")
    assert not [name for name in outcomes if name.startswith("WRONG")], outcomes
    assert outcomes["set aside"] > 20, outcomes
    assert outcomes["mended"], outcomes
