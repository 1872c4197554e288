"""What goes out comes back: every node, number and place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import InvalidFileError, NewChunk, NewNode, SessionStore, StoreDamagedError, UnknownRowError
from storage.tables import columns
from storage.tables.checksums import COVERED, digest_of
from tests.storage.helpers import chat, chunk, sql, with_store
from tests.storage.transfer.trees import DIGEST, KNOWN, VOCABULARY, Export, as_json, as_portable, branching, fingerprint, taken

EXPORTS = pytest.mark.parametrize("export", [as_json, as_portable])

TURNS = """SELECT node_id - ?, parent_id - ?, at_token, seq, role, turn_start, text, status, finish_reason, token_count,
           kv_fingerprint, stats FROM turns WHERE session_id = ? ORDER BY seq"""
TOKENS = """SELECT node_id - ?, kv_fingerprint, own, position, token_id, text, logprob, rank, entropy, surprisal_bits
            FROM tokens WHERE session_id = ? ORDER BY 1, 2, 4"""
BRANCHES = "SELECT tip_id - ?, node_id - ?, upto, steps_from_tip FROM branches WHERE session_id = ? ORDER BY 1, 4"


@EXPORTS
def test_a_session_comes_back_as_it_was(path: Path, tmp_path: Path, export: Export) -> None:
    session = with_store(path, branching)
    export(path, session, tmp_path / "out")
    imported = taken(path, tmp_path / "out")
    [copy] = imported.sessions
    assert copy != session
    assert fingerprint(path, copy) == fingerprint(path, session)
    assert with_store(path, lambda store: store.verify()) == []


@EXPORTS
@pytest.mark.parametrize("what", ["short", "ragged", "junk"])
def test_tokens_whose_columns_do_not_fit_are_not_exported(path: Path, tmp_path: Path, export: Export, what: str) -> None:
    # given: a chunk whose checksum fits its bytes, but whose bytes are not the columns of its tokens
    session, _, answer = with_store(path, chat)
    row, count, held = sql(path, "SELECT id, count, columns FROM token_chunks WHERE node_id = ?", answer)[-1]
    found = columns.decode(held)
    wrong = {
        "short": columns.encode(columns.cut(found, 0, count - 1)),
        "ragged": columns.encode({**found, "lengths": found["lengths"][:-1]}),
        "junk": b"no columns",
    }[what]
    sql(path, "UPDATE token_chunks SET columns = ? WHERE id = ?", wrong, row)
    covered = ", ".join(COVERED["token_chunks"])
    [values] = sql(path, f"SELECT {covered} FROM token_chunks WHERE id = ?", row)  # our own names
    sql(path, "UPDATE token_chunks SET sha256 = ? WHERE id = ?", digest_of(values), row)
    # then it is refused with the place, and no file is left
    with pytest.raises(StoreDamagedError, match=f"the tokens of node {answer} from .* is damaged, nothing was written"):
        export(path, session, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@EXPORTS
def test_an_export_of_an_import_is_the_same_file_but_for_its_numbers(path: Path, tmp_path: Path, export: Export) -> None:
    session = with_store(path, branching)
    export(path, session, tmp_path / "a")
    other = tmp_path / "other" / "sessions.sqlite3"
    [copy] = taken(other, tmp_path / "a").sessions
    assert fingerprint(other, copy) == fingerprint(path, session)
    assert with_store(other, lambda store: store.model("model-a")) == KNOWN
    known = with_store(other, lambda store: store.vocabulary(DIGEST))
    assert known == (VOCABULARY if export is as_portable else None)


@EXPORTS
def test_the_views_say_the_same_of_the_copy(path: Path, tmp_path: Path, export: Export) -> None:
    session = with_store(path, branching)
    export(path, session, tmp_path / "out")
    [copy] = taken(path, tmp_path / "out").sessions

    def seen(session_id: int) -> list[Any]:
        [(low,)] = sql(path, "SELECT min(node_id) FROM turns WHERE session_id = ?", session_id)
        turns = sql(path, TURNS, low, low, session_id)
        tokens = sql(path, TOKENS, low, session_id)
        branches = sql(path, BRANCHES, low, low, session_id)
        return [turns, tokens, branches]

    assert seen(copy) == seen(session)
    assert len(seen(copy)[1]) == 4 + 10 + 5 + 2 + 3


def test_what_is_known_here_is_not_replaced(path: Path, tmp_path: Path) -> None:
    session = with_store(path, branching)
    as_json(path, session, tmp_path / "out")
    text = (tmp_path / "out").read_text().replace('"name":"A"', '"name":"Mallory"')
    (tmp_path / "out").write_text(text)
    taken(path, tmp_path / "out")
    assert with_store(path, lambda store: store.model("model-a")) == KNOWN


def test_the_copy_is_found_by_its_words(path: Path, tmp_path: Path) -> None:
    session = with_store(path, branching)
    as_json(path, session, tmp_path / "out")
    [copy] = taken(path, tmp_path / "out").sessions
    found = with_store(path, lambda store: store.sessions("rainy"))
    assert [row.id for row in found] == [copy, session]


def test_the_format_is_the_one_that_is_documented(path: Path, tmp_path: Path) -> None:
    session = with_store(path, branching)
    as_json(path, session, tmp_path / "out")
    made = json.loads((tmp_path / "out").read_text())
    assert list(made) == ["format", "version", "session", "models", "nodes", "tokens"]
    assert (made["format"], made["version"]) == ("elsewise.session", 1)
    node = made["nodes"][2]
    assert (node["role"], node["token_count"], node["finish_reason"]) == ("assistant", 10, "length")
    columns = next(t for t in made["tokens"] if t["node"] == node["id"] and t["first"] == 8)["columns"]
    assert columns["ids"] == {"dtype": "<i4", "shape": [2], "values": [8, 9]}
    assert columns["logprob"] == {"dtype": "<f4", "shape": [2], "values": [-1.25, -1.25]}


def test_an_answer_that_is_being_written_goes_out_as_far_as_it_is(path: Path, tmp_path: Path) -> None:
    async def write(store: SessionStore) -> int:
        session, user, _ = await chat(store)
        node = await store.add_node(NewNode(session, user, "assistant", status="open"))
        await store.append_chunk(
            node, NewChunk("model-a", 0, 2, {"ids": np.array([1, 2], np.int32), "origin": np.array([2, 2], np.uint8)})
        )
        branched = await store.add_node(NewNode(session, user, "assistant", status="open", text="w0 "), chunk(0, 1))
        await store.append_chunk(branched, chunk(1, 4))
        await store.add_node(NewNode(session, branched, "assistant", "x", at_token=4, at_byte=12))
        as_json(path, session, tmp_path / "out")
        return session

    with_store(path, write)
    [copy] = taken(path, tmp_path / "out").sessions
    nodes = with_store(path, lambda store: store.load_session(copy)).nodes
    assert (nodes[2].status, nodes[2].finish_reason, nodes[2].token_count) == ("partial", "app_ended", 2)
    assert (nodes[3].text, nodes[3].token_count) == ("w0 w1 w2 w3 w4 ", 5)


@EXPORTS
def test_a_session_that_is_not_there_leaves_no_file(path: Path, tmp_path: Path, export: Export) -> None:
    with_store(path, branching)
    with pytest.raises(UnknownRowError):
        export(path, 99, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


# ---- any tree -----------------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=12)
NUMBERS = st.just(math.nan) | st.floats(max_value=0, width=32)
STATS = st.dictionaries(TEXTS.filter(lambda t: "\0" not in t), st.integers(-(1 << 53), 1 << 53) | TEXTS | st.none(), max_size=3)


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[NewNode, NewChunk | None]]:
    """Nodes whose parents are places in the list."""
    made: list[tuple[NewNode, NewChunk | None]] = []
    for number in range(draw(st.integers(1, 7))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        count = draw(st.integers(0, 5))
        held = made[parent][1] if parent is not None else None
        at = draw(st.none() | st.integers(0, held.count if held else 0)) if parent is not None else None
        columns = {
            "ids": np.array(draw(st.lists(st.integers(0, 1 << 20), min_size=count, max_size=count)), np.int32),
            "logprob": np.array(draw(st.lists(NUMBERS, min_size=count, max_size=count)), np.float32),
            "rank": np.ones(count, np.int32),
        }
        saved = NewChunk(draw(st.sampled_from(["m", "n"])), 0, count, columns) if count else None
        role: Any = draw(st.sampled_from(["system", "user", "assistant"]))
        status: Any = draw(st.sampled_from(["complete", "partial"]))
        node = NewNode(0, parent, role, draw(TEXTS), at_token=at, turn_start=draw(st.booleans()), status=status,
                       finish_reason=draw(st.sampled_from([None, "eos", "stop"])), stats=draw(STATS))  # fmt: skip
        made.append((node, saved))
    return made


def any_tree(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXPORTS
@any_tree(2)
@given(tree=trees())
def test_any_tree_comes_back(path: Path, tmp_path: Path, export: Export, tree: list[tuple[NewNode, NewChunk | None]]) -> None:
    comes_back(path, tmp_path, export, tree)


@pytest.mark.slow
@EXPORTS
@any_tree(60)
@given(tree=trees())
def test_any_of_many_trees_comes_back(
    path: Path, tmp_path: Path, export: Export, tree: list[tuple[NewNode, NewChunk | None]]
) -> None:
    comes_back(path, tmp_path, export, tree)


def comes_back(path: Path, tmp_path: Path, export: Export, tree: list[tuple[NewNode, NewChunk | None]]) -> None:
    async def write(store: SessionStore) -> int:
        session = await store.create_session("any")
        ids: list[int] = []
        for node, saved in tree:
            parent = None if node.parent_id is None else ids[node.parent_id]
            new = NewNode(session, parent, node.role, node.text, at_token=node.at_token, turn_start=node.turn_start,
                          status=node.status, finish_reason=node.finish_reason, stats=node.stats)  # fmt: skip
            ids.append(await store.add_node(new, saved, current=True))
        return session

    session = with_store(path, write)
    export(path, session, tmp_path / "out")
    [copy] = taken(path, tmp_path / "out").sessions
    assert fingerprint(path, copy) == fingerprint(path, session)


@pytest.mark.parametrize("export", [as_json, as_portable])
def test_what_a_session_is_set_to_goes_with_it(path: Path, tmp_path: Path, export: Export) -> None:
    """But for what means something on one machine, or with one store's numbers, alone."""
    kept = {"options": {"temperature": 0.25, "stop": ["\n"]}, "preset": "calm", "format": ["regex", "a+"], "guess": "off"}
    setup = {**kept, "adapters": [["/adapters/lora", "lora", 1.0, True]], "pruned": [[3, 0]]}

    async def fill(store: SessionStore) -> int:
        session = await branching(store)
        await store.set_session_setup(session, setup)
        return session

    export(path, with_store(path, fill), tmp_path / "out")
    other = tmp_path / "other.db"
    with_store(other, chat)
    [copy] = taken(other, tmp_path / "out").sessions
    assert with_store(other, lambda store: store.session_setup(copy)) == kept
    export(other, copy, tmp_path / "again")
    [second] = taken(other, tmp_path / "again").sessions
    assert with_store(other, lambda store: store.session_setup(second)) == kept


def test_a_setup_that_is_none_is_refused(path: Path, tmp_path: Path) -> None:
    session = {"title": "A", "created": 1.0, "updated": 1.0, "pinned": False, "setup": [1]}
    text = f'{{"format": "elsewise.session", "version": 1,\n"session": {json.dumps(session)}, "nodes": []}}'
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InvalidFileError, match="line 2, the session: setup should be an object, not a list"):
        taken(path, tmp_path / "bad.json")
