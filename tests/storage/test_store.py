"""Saving, reading and reopening a session; what a finished run refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import InvalidRowError, NewNode, SessionStore, UnknownRowError
from tests.storage.helpers import MODEL, chat, chunk, ids, sql, with_store


def test_a_chat_is_the_same_after_reopening(path: Path) -> None:
    session, user, answer = with_store(path, chat)

    async def read(store: SessionStore) -> None:
        tree = await store.load_session(session)
        assert (tree.session.title, tree.session.current_node, tree.session.branches) == ("Paris", answer, 1)
        first, second = tree.nodes
        assert (first.id, first.parent_id, first.role, first.text, first.status) == (
            user, None, "user", "Where should we go?", "complete",
        )  # fmt: skip
        assert (second.parent_id, second.status, second.finish_reason) == (user, "complete", "eos")
        assert (second.token_count, second.text, second.stats) == (6, "answer in Paris", {"seed": 7})
        assert not tree.session.damaged
        assert not any(node.damaged for node in tree.nodes)
        tokens = await store.load_tokens([user, answer])
        assert ids(tokens[user]) == [0, 1, 2, 3]
        assert ids(tokens[answer]) == [0, 1, 2, 3, 4, 5]
        assert await store.verify() == []

    with_store(path, read)


def test_the_shape_of_a_session_has_all_fields_of_its_nodes_except_text_and_stats(path: Path) -> None:
    session, user, answer = with_store(path, chat)

    async def grow(store: SessionStore) -> None:
        await store.add_node(NewNode(session, answer, "assistant", at_token=2, at_byte=7, turn_start=False, status="open"))

    with_store(path, grow)
    sql(path, "UPDATE nodes SET text = 'other words' WHERE id = ?", user)  # damages the checksum of the row

    async def read(store: SessionStore) -> None:
        tree, shape = await store.load_session(session), await store.load_shape(session)
        assert shape.session == tree.session
        assert len(shape.nodes) == len(tree.nodes) == 3
        for place, node in enumerate(tree.nodes):
            stub = shape.nodes.stub(place)
            for name in ("id", "session_id", "parent_id", "at_token", "at_byte", "role", "turn_start", "status", "seq",
                         "finish_reason", "token_count", "kv_fingerprint", "damaged", "has_text"):  # fmt: skip
                assert getattr(stub, name) == getattr(node, name), name
            assert (stub.whole, node.whole) == (False, True)
            for name in ("text", "stats"):
                with pytest.raises(LookupError, match=f"node {node.id} was"):
                    getattr(stub, name)
        assert [node.damaged for node in tree.nodes] == [True, False, False]
        assert await store.load_nodes(session, [answer, user, 99]) == list(tree.nodes[:2])
        assert await store.load_nodes(session, [user], after=answer) == [tree.nodes[0], tree.nodes[2]]
        assert await store.load_nodes(session + 1, [user], after=0) == []
        sql(path, "DELETE FROM nodes WHERE at_token = 2")
        assert (await store.load_shape(session)).session.damaged  # a lost node is detected

    with_store(path, read)


def test_columns_are_read_as_they_were_saved(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        saved = chunk(0, 4)
        node = await store.add_node(NewNode(session, None, "user", "x"), saved)
        [read] = (await store.load_tokens([node]))[node]
        assert (read.node_id, read.kv_fingerprint, read.first, read.count, read.damaged) == (node, "model-a", 0, 4, False)
        assert read.columns.keys() == saved.columns.keys()
        for name, column in saved.columns.items():
            np.testing.assert_array_equal(read.columns[name], column)
            assert read.columns[name].dtype == column.dtype

    asyncio.run(run())


def test_a_streamed_answer_grows_by_chunks_and_is_fixed_once_finished(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "assistant", status="open"))
        for first in (0, 5, 10):
            await store.append_chunk(node, chunk(first, 5))
        [row] = (await store.load_session(session)).nodes
        assert (row.status, row.token_count) == ("open", 15)
        await store.finish_node(node, finish_reason="cancelled", stats={}, text="half")
        [row] = (await store.load_session(session)).nodes
        assert (row.status, row.finish_reason, row.token_count) == ("partial", "cancelled", 15)
        with pytest.raises(InvalidRowError, match="already partial"):
            await store.finish_node(node, finish_reason="eos", stats={}, text="other")
        with pytest.raises(InvalidRowError, match="do not change any more"):
            await store.append_chunk(node, chunk(15, 5))
        assert len(ids((await store.load_tokens([node]))[node])) == 15

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reason", "status"),
    [(None, "complete"), ("eos", "complete"), ("stop", "complete"), ("length", "partial"), ("engine_died", "partial")],
)
def test_the_finish_reason_decides_whether_an_answer_is_complete(store: SessionStore, reason: str | None, status: str) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "assistant", status="open"))
        await store.finish_node(node, finish_reason=reason, stats={}, text="")
        assert (await store.load_session(session)).nodes[0].status == status
        cut = await store.add_node(NewNode(session, None, "assistant", status="open"))
        await store.finish_node(cut, finish_reason=reason, incomplete=True, stats={}, text="")
        assert (await store.load_session(session)).nodes[1].status == "partial"

    asyncio.run(run())


def test_a_turn_saved_without_tokens_takes_its_tokens_once(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        node = await store.add_node(NewNode(session, None, "user", "hello"))
        await store.append_chunk(node, chunk(0, 3))
        [row] = (await store.load_session(session)).nodes
        assert (row.token_count, row.kv_fingerprint, row.damaged) == (3, "model-a", False)
        with pytest.raises(InvalidRowError, match="3 tokens do not change"):
            await store.append_chunk(node, chunk(3, 1))
        assert await store.verify() == []

    asyncio.run(run())


def test_invalid_rows_are_refused_and_change_nothing(store: SessionStore) -> None:
    async def refused(attempt: Coroutine[Any, Any, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            await attempt

    async def run() -> None:
        session, user, answer = await chat(store)
        other = await store.create_session("other")
        before = await store.load_session(session)
        open_node = await store.add_node(NewNode(other, None, "assistant", status="open"))
        bad = store.add_node(NewNode(session, 999, "user", "x"))
        await refused(bad, UnknownRowError, "no node 999")
        await refused(store.add_node(NewNode(999, None, "user", "x")), UnknownRowError, "no session 999")
        await refused(store.add_node(NewNode(other, user, "user", "x")), InvalidRowError, "belongs to session")
        far = NewNode(session, answer, "assistant", "x", at_token=7)
        await refused(store.add_node(far), InvalidRowError, "has 6 tokens, token 7")
        below = NewNode(session, answer, "assistant", "x", at_token=-1)
        await refused(store.add_node(below), InvalidRowError, "not a place in a run")
        await refused(store.add_node(NewNode(session, None, "user", "x", at_token=1)), InvalidRowError, "a root has no parent")
        clown: Any = "clown"
        await refused(store.add_node(NewNode(session, user, clown, "x")), InvalidRowError, "role 'clown'")
        await refused(store.append_chunk(open_node, chunk(1, 2)), InvalidRowError, "starts at 1 does not follow")
        await refused(store.append_chunk(open_node, chunk(0, 0)), InvalidRowError, "a chunk of 0 tokens")
        await refused(store.set_current(other, user), InvalidRowError, "does not belong to session")
        await refused(store.load_session(999), UnknownRowError, "no session 999")
        await refused(store.rename_session(999, "x"), UnknownRowError, "no session 999")
        stats = NewNode(session, user, "user", "x", stats={"loop": object()})
        await refused(store.add_node(stats), InvalidRowError, "cannot be saved as JSON")
        assert await store.load_session(session) == before
        assert await store.verify() == []

    asyncio.run(run())


def test_the_first_tokens_of_an_open_run_can_be_replaced_by_another_models(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("a")
        node = await store.add_node(NewNode(session, None, "assistant", status="open"), chunk(0, 2))
        # when the chunk has fewer tokens than the run, or different ids, nothing changes
        other = chunk(0, 3, model="another")
        other.columns["ids"][1] += 1
        for bad, words in ((chunk(0, 1, model="another"), "use rescore"), (other, "other token ids")):
            with pytest.raises(InvalidRowError, match=words):
                await store.append_chunk(node, bad)
        [saved] = (await store.load_tokens([node]))[node]
        assert (saved.kv_fingerprint, saved.count) == (MODEL, 2)
        # when it has all of them, it replaces them, and the run continues from there
        await store.append_chunk(node, chunk(0, 3, model="another"))
        await store.append_chunk(node, chunk(3, 2, model="another"))
        await store.finish_node(node, finish_reason="eos", stats={}, text="w0 w1 w2 w3 w4 ")
        found = (await store.load_tokens([node]))[node]
        assert [(tile.kv_fingerprint, tile.first, tile.count) for tile in found] == [("another", 0, 3), ("another", 3, 2)]
        with pytest.raises(InvalidRowError, match="do not change any more"):
            await store.append_chunk(node, chunk(0, 5, model="another"))
        assert await store.verify() == []

    asyncio.run(run())


def test_surrogates_and_nul_characters_are_replaced_when_saved(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("a\x00b\ud800")
        node = await store.add_node(NewNode(session, None, "user", "x\udfffy\x00z 🙂", stats={"k\ud800": ["\x00"]}))
        tree = await store.load_session(session)
        assert tree.session.title == "a\ufffdb\ufffd"
        assert tree.nodes[0].text == "x\ufffdy\ufffdz 🙂"
        assert tree.nodes[0].stats == {"k\ufffd": ["\ufffd"]}
        assert [row.id for row in await store.sessions("a\ufffdb")] == [session]
        assert node == tree.nodes[0].id
        assert await store.verify() == []

    asyncio.run(run())


def test_vocabularies_models_and_settings_are_saved_by_key(path: Path) -> None:
    async def save(store: SessionStore) -> None:
        await store.save_vocabulary("digest", [b"a", b"\xff\x00", b""])
        await store.save_model("model-a", {"name": "SmolLM2", "vocabulary": "digest"})
        await store.set_setting("theme", "light")
        await store.set_setting("theme", {"name": "dark", "size": np.float32(1.5), "bad": float("nan")})

    async def read(store: SessionStore) -> None:
        assert await store.vocabulary("digest") == [b"a", b"\xff\x00", b""]
        assert await store.vocabulary("other") is None
        assert await store.model("model-a") == {"name": "SmolLM2", "vocabulary": "digest"}
        assert await store.model("model-b") is None
        assert await store.setting("theme") == {"name": "dark", "size": 1.5, "bad": None}
        assert await store.setting("other") is None

    with_store(path, save)
    with_store(path, read)
