"""Token chunks: rescoring, several models, and named damage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from runtime.records import Finish, Origin
from storage import InvalidRowError, NewNode, SessionStore, StoredChunk
from storage.tables.token_chunks import text_of
from storage.transfer.import_tree import check_known
from tests.storage.helpers import MODEL, chat, chunk, ids, sql, with_store


def logprobs(tiles: list[StoredChunk]) -> list[float]:
    return [float(p) for tile in tiles for p in tile.columns["logprob"]]


def layout(tiles: list[StoredChunk]) -> list[tuple[int, int, bool]]:
    return [(tile.first, tile.count, tile.damaged) for tile in tiles]


def test_later_scores_take_precedence_and_nothing_is_rewritten(store: SessionStore, path: Path) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "user", "x"), chunk(0, 6, logprob=None))
        assert np.isnan(logprobs((await store.load_tokens([node]))[node])).all()
        await store.rescore(node, chunk(0, 6, logprob=-1.0))
        await store.rescore(node, chunk(2, 2, logprob=-2.0))
        tiles = (await store.load_tokens([node]))[node]
        assert logprobs(tiles) == [-1, -1, -2, -2, -1, -1]
        assert layout(tiles) == [(0, 2, False), (2, 2, False), (4, 2, False)]
        assert [bytes(t.columns["data"]) for t in tiles] == [b"w0 w1 ", b"w2 w3 ", b"w4 w5 "]
        assert ids(tiles) == [0, 1, 2, 3, 4, 5]

    asyncio.run(run())
    assert sql(path, "SELECT count(*) FROM token_chunks") == [(3,)]


def test_every_finish_reason_and_origin_is_accepted() -> None:
    ends, origins = [*Finish], [*Origin]
    check_known({"ids": np.arange(len(ends)), "finish": np.array(ends, np.uint8)})
    check_known({"ids": np.arange(len(origins)), "origin": np.array(origins, np.uint8)})
    text = {"text_data": np.array([120], np.uint8), "text_lengths": np.array([1])}
    said = [text_of({"finish": np.array([end], np.uint8), **text}) for end in ends]
    assert said == ["" if end.by_eos else "x" for end in ends]


def test_scores_for_other_ids_are_refused(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "user", "x"), chunk(0, 6))
        other = chunk(2, 2)
        other.columns["ids"][:] = 99
        with pytest.raises(InvalidRowError, match="other token ids"):
            await store.rescore(node, other)
        with pytest.raises(InvalidRowError, match="has 6 tokens"):
            await store.rescore(node, chunk(4, 4))

    asyncio.run(run())


def test_the_tokens_of_a_second_model_are_stored_beside_the_first_ones(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "user", "x"), chunk(0, 6))
        await store.rescore(node, chunk(0, 5, model="model-b", logprob=-3.0))
        await store.rescore(node, chunk(5, 5, model="model-b", logprob=-4.0))  # a different tokenizer: more tokens
        own = (await store.load_tokens([node]))[node]
        theirs = (await store.load_tokens([node], "model-b"))[node]
        unknown = (await store.load_tokens([node], "model-c"))[node]
        assert (len(ids(own)), {t.kv_fingerprint for t in own}) == (6, {MODEL})
        assert logprobs(theirs) == [-3.0] * 5 + [-4.0] * 5
        assert {t.kv_fingerprint for t in theirs} == {"model-b"}
        assert [t.kv_fingerprint for t in unknown] == [MODEL]
        with pytest.raises(InvalidRowError, match="10 tokens under model-b"):
            await store.rescore(node, chunk(11, 1, model="model-b"))

    asyncio.run(run())


def test_a_flipped_bit_names_its_chunk_and_the_others_are_read(path: Path) -> None:
    session, _, answer = with_store(path, lambda store: chat(store, tokens=4))
    other, _, other_answer = with_store(path, lambda store: chat(store, "other"))

    async def add(store: SessionStore) -> int:
        node = await store.add_node(NewNode(session, answer, "assistant", status="open"))
        for first in (0, 3, 6):
            await store.append_chunk(node, chunk(first, 3))
        await store.finish_node(node, finish_reason="eos", stats={}, text="nine")
        return node

    node = with_store(path, add)
    flip(path, "token_chunks", "columns", f"node_id = {node} AND first = 3")

    async def read(store: SessionStore) -> None:
        tiles = (await store.load_tokens([node]))[node]
        assert layout(tiles) == [(0, 3, False), (3, 3, True), (6, 3, False)]
        assert tiles[1].columns == {}
        assert ids([tiles[0], tiles[2]]) == [0, 1, 2, 6, 7, 8]
        [damage] = [row for row in await store.verify() if row.kind == "tokens" and "checksum" in row.detail]
        assert (damage.session_id, damage.title, damage.node_id, damage.turn) == (session, "Paris", node, 3)
        assert "3 tokens from 3" in damage.detail
        assert ids((await store.load_tokens([other_answer]))[other_answer]) == [0, 1, 2, 3, 4, 5]
        assert not (await store.load_session(other)).session.damaged

    with_store(path, read)


def test_an_older_intact_copy_replaces_a_damaged_one_and_is_marked(path: Path) -> None:
    async def make(store: SessionStore) -> int:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "user", "x"), chunk(0, 6, logprob=None))
        await store.rescore(node, chunk(2, 2, logprob=-1.0))
        return node

    node = with_store(path, make)
    flip(path, "token_chunks", "columns", "first = 2")

    async def read(store: SessionStore) -> None:
        tiles = (await store.load_tokens([node]))[node]
        assert layout(tiles) == [(0, 2, False), (2, 2, True), (4, 2, False)]
        assert ids(tiles) == [0, 1, 2, 3, 4, 5]

    with_store(path, read)


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM token_chunks WHERE first = 3",
        "UPDATE token_chunks SET first = 1000000 WHERE first = 3",
        "UPDATE token_chunks SET node_id = 1 WHERE first = 3",
        "UPDATE token_chunks SET kv_fingerprint = 'model-q' WHERE first = 3",
        "UPDATE token_chunks SET first = -5 WHERE first = 3",
        "UPDATE token_chunks SET count = 'x' WHERE first = 3",
        "UPDATE token_chunks SET columns = 'text' WHERE first = 3",
    ],
)
def test_a_lost_or_misplaced_chunk_leaves_a_named_gap(path: Path, harm: str) -> None:
    async def make(store: SessionStore) -> tuple[int, int]:
        session, _, answer = await chat(store)
        node = await store.add_node(NewNode(session, answer, "assistant", status="open"))
        for first in (0, 3, 6):
            await store.append_chunk(node, chunk(first, 3))
        await store.finish_node(node, finish_reason="eos", stats={}, text="nine")
        return session, node

    session, node = with_store(path, make)
    sql(path, harm)

    async def read(store: SessionStore) -> None:
        tiles = (await store.load_tokens([node]))[node]
        assert sum(tile.count for tile in tiles) == 9
        assert [tile for tile in tiles if tile.damaged and tile.first == 3 and tile.count == 3 and not tile.columns]
        found = await store.verify()
        assert [row for row in found if row.node_id == node and row.kind == "tokens"], found
        assert (await store.load_session(session)).session.title == "Paris"

    with_store(path, read)


def test_a_run_without_any_of_its_tokens_is_one_named_gap(path: Path) -> None:
    session, user, answer = with_store(path, chat)
    sql(path, "DELETE FROM token_chunks WHERE node_id = ?", answer)

    async def read(store: SessionStore) -> None:
        assert layout((await store.load_tokens([answer]))[answer]) == [(0, 6, True)]
        assert [node.damaged for node in (await store.load_session(session)).nodes] == [False, True]
        assert [(row.node_id, row.turn, row.detail) for row in await store.verify()] == [(answer, 2, "6 tokens cannot be read")]
        assert ids((await store.load_tokens([user, answer]))[user]) == [0, 1, 2, 3]

    with_store(path, read)


def test_scores_with_a_damaged_range_mark_the_whole_run_as_damaged(path: Path) -> None:
    async def make(store: SessionStore) -> int:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "user", "x"), chunk(0, 6, logprob=None))
        await store.rescore(node, chunk(2, 2))
        return node

    node = with_store(path, make)
    sql(path, "UPDATE token_chunks SET first = 5000 WHERE first = 2")

    async def read(store: SessionStore) -> None:
        tiles = (await store.load_tokens([node]))[node]
        assert layout(tiles) == [(0, 6, True)]
        assert ids(tiles) == [0, 1, 2, 3, 4, 5]

    with_store(path, read)


def test_a_damaged_node_row_is_marked_and_its_tokens_are_still_found(path: Path) -> None:
    session, user, answer = with_store(path, chat)
    sql(path, "UPDATE nodes SET kv_fingerprint = 'model-q', text = 'forged' WHERE id = ?", answer)

    async def read(store: SessionStore) -> None:
        rows = {node.id: node for node in (await store.load_session(session)).nodes}
        assert rows[answer].damaged
        assert not rows[user].damaged
        assert ids((await store.load_tokens([answer]))[answer]) == [0, 1, 2, 3, 4, 5]
        assert {(row.kind, row.node_id, row.turn) for row in await store.verify()} >= {("node", answer, 2)}

    with_store(path, read)


def flip(path: Path, table: str, column: str, where: str) -> None:
    """Flips one bit in the middle of one blob."""
    [(value,)] = sql(path, f"SELECT {column} FROM {table} WHERE {where}")
    middle = len(value) // 2
    sql(
        path,
        f"UPDATE {table} SET {column} = ? WHERE {where}",
        value[:middle] + bytes([value[middle] ^ 4]) + value[middle + 1 :],
    )
