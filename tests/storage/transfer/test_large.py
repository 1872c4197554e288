"""Imports of 100,000 nodes and 1,000,000 tokens: other calls proceed, memory stays small, and it is all or nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import InvalidFileError, SessionStore, export_json, export_text
from storage.database import Database
from storage.transfer import importer
from tests.storage.helpers import chat, sql, with_store
from tests.storage.transfer.trees import leftovers, taken

HEAD = '{"format": "elsewise.session", "version": 1,\n"session": %s,\n"models": [],\n"nodes": ['
SESSION = {"title": "large", "created": 1.0, "updated": 2.0, "pinned": False, "current": None, "more": {}}
WRITER = """
import asyncio, sys
from pathlib import Path
from storage import SessionStore
store = SessionStore.open(Path(sys.argv[1]))
def stand_still(done, total):
    print(done, total, flush=True)
    sys.stdin.read()  # until it is killed, or nobody is there any more
asyncio.run(store.import_file(Path(sys.argv[2]), stand_still))
"""
MEASURED = """
import asyncio, resource, sys
from pathlib import Path
from storage import SessionStore, export_json
def grown():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
store = SessionStore.open(Path(sys.argv[1]))
small = Path(sys.argv[2]).with_name("small.json")
small.write_text('[{"role": "user", "content": "hi"}]')
asyncio.run(store.import_file(small))  # what is loaded only once
before = grown()
session = asyncio.run(store.import_file(Path(sys.argv[2]))).sessions[0]
middle = grown()
export_json(Path(sys.argv[1]), session, Path(sys.argv[3]), lambda done, total: None)
print(middle - before, grown() - middle)
store.close_sync()
"""


def node(number: int, parent: int | None, tokens: int = 0) -> dict[str, Any]:
    return {"id": number, "parent": parent, "role": "user" if number % 2 else "assistant", "turn_start": True,
            "text": f"node {number}", "status": "complete", "token_count": tokens, "created": 1.0,
            "kv_fingerprint": "m" if tokens else None}  # fmt: skip


def tokens(number: int, first: int, count: int) -> dict[str, Any]:
    columns = {
        "ids": {"dtype": "<i4", "shape": [count], "values": list(range(first, first + count))},
        "logprob": {"dtype": "<f4", "shape": [count], "values": [-0.5] * count},
        "rank": {"dtype": "<i4", "shape": [count], "values": [1] * count},
    }
    return {"node": number, "kv_fingerprint": "m", "first": first, "count": count, "columns": columns}


def document(path: Path, nodes: Iterator[dict[str, Any]], ranges: Iterable[dict[str, Any]] = ()) -> Path:
    with path.open("w") as file:
        file.write(HEAD % json.dumps(SESSION))
        file.write(",\n".join(json.dumps(each) for each in nodes))
        file.write('],\n"tokens": [')
        for index, each in enumerate(ranges):
            file.write(",\n" * bool(index) + json.dumps(each))
        file.write("]}")
    return path


def chain(count: int) -> Iterator[dict[str, Any]]:
    return (node(n, n - 1 if n else None) for n in range(count))


@pytest.mark.slow
def test_100_000_nodes_are_imported_and_exported(path: Path, tmp_path: Path) -> None:
    file = document(tmp_path / "deep.json", chain(100_000))
    heard: list[tuple[int, int]] = []

    whole = with_store(path, lambda store: store.import_file(file, lambda done, total: heard.append((done, total))))
    assert len(whole.sessions) == 1
    assert len(heard) > 10
    assert heard == sorted(heard)
    assert heard[-1] == (file.stat().st_size,) * 2
    assert sql(path, "SELECT count(*), max(seq) FROM turns") == [(100_000, 100_000)]
    [row] = with_store(path, lambda store: store.sessions())
    assert (row.title, row.branches) == ("large", 1)
    # and exported again, also along the deepest path
    export_json(path, row.id, tmp_path / "again.json", lambda _d, _t: None)
    export_text("markdown", path, row.id, tmp_path / "path.md", lambda _d, _t: None, tip=_last(path))
    assert (tmp_path / "path.md").read_text().count("\n## ") == 100_000


def _last(path: Path) -> int:
    return int(sql(path, "SELECT max(id) FROM nodes")[0][0])


@pytest.mark.slow
def test_1_000_000_tokens_are_imported_and_exported_in_little_memory(path: Path, tmp_path: Path) -> None:
    ranges = (tokens(0, first, 1000) for first in range(0, 1_000_000, 1000))
    file = document(tmp_path / "long.json", iter([node(0, None, 1_000_000)]), ranges)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", MEASURED, str(path), str(file), str(tmp_path / "again.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    imported, exported = (int(line) for line in done.stdout.split())
    assert imported < 60 << 20, imported
    assert exported < 30 << 20, exported
    assert sql(path, "SELECT count(*), sum(count), max(first) FROM token_chunks") == [(1000, 1_000_000, 999_000)]
    assert sql(path, "SELECT token_id, logprob FROM tokens WHERE position = 777777") == [(777_777, -0.5)]
    assert (tmp_path / "again.json").stat().st_size > 10_000_000


def test_other_calls_proceed_after_each_row_of_an_import(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slices of no duration every transaction writes one row: other calls wait for no more than that."""
    monkeypatch.setattr(importer, "SLICE_SECONDS", 0)
    writes: list[int] = []  # rows that each transaction added
    databases: set[Database] = set()
    real = Database.write

    def rows(db: Any) -> int:
        return int(db.execute("SELECT (SELECT count(*) FROM nodes) + (SELECT count(*) FROM token_chunks)").fetchone()[0])

    async def counting(self: Database, job: Callable[[Any], Any]) -> Any:
        databases.add(self)

        def counted(db: Any) -> Any:
            before = rows(db)
            result = job(db)
            writes.append(rows(db) - before)
            return result

        return await real(self, counted)

    monkeypatch.setattr(Database, "write", counting)
    ranges = (tokens(299, first, 10) for first in range(0, 1000, 10))
    file = document(tmp_path / "deep.json", iter([*chain(299), node(299, 298, 1000)]), ranges)

    async def play(store: SessionStore) -> set[int]:
        work, seen = asyncio.ensure_future(store.import_file(file)), set[int]()
        while not work.done():
            await asyncio.sleep(0)
            seen.update([await database.read(rows) for database in databases])
        return seen

    assert len(with_store(path, play)) > 100  # reads that saw different row counts
    assert (sum(writes), max(writes)) == (400, 1)


def test_an_error_at_the_end_leaves_nothing(path: Path, tmp_path: Path) -> None:
    with_store(path, chat)
    before = leftovers(path)
    nodes = list(chain(1000))
    nodes[-1]["parent"] = 5000
    file = document(tmp_path / "bad.json", iter(nodes))
    with pytest.raises(InvalidFileError, match=r"line 1,003, node 999"):
        taken(path, file)
    assert leftovers(path) == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_cancelled_import_leaves_nothing(path: Path, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "SLICE_SECONDS", 0.001)
    file = document(tmp_path / "deep.json", chain(20_000))  # seconds of work: it is cancelled long before its end

    async def play(store: SessionStore) -> None:
        await chat(store)
        heard = asyncio.Event()
        count = 0

        def progress(_done: int, _total: int) -> None:
            nonlocal count
            count += 1
            if count >= after:
                heard.set()

        work = asyncio.ensure_future(store.import_file(file, progress))
        if after:
            await heard.wait()
        else:
            await asyncio.sleep(0.01)
        assert [row.title for row in await store.sessions()] == ["Paris"], "nobody sees it yet"
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    with_store(path, play)
    assert leftovers(path)[:3] == [1, 2, 2]
    assert with_store(path, lambda store: store.verify()) == []


def test_an_exception_in_the_progress_callback_ends_the_import(path: Path, tmp_path: Path) -> None:
    file = document(tmp_path / "deep.json", chain(50))

    def progress(_done: int, _total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        with_store(path, lambda store: store.import_file(file, progress))
    assert leftovers(path)[:3] == [0, 0, 0]


@pytest.mark.slow
def test_the_remains_of_a_killed_import_are_hidden_and_cleared_at_the_next_start(path: Path, tmp_path: Path) -> None:
    with_store(path, chat)
    before = leftovers(path)
    file = document(tmp_path / "deep.json", chain(8000))
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", WRITER, str(path), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert leftovers(path)[1] > before[1], "it was in the middle of it"

    async def play(store: SessionStore) -> None:
        assert [row.title for row in await store.sessions()] == ["Paris"]
        assert await store.sessions("node") == []
        assert await store.verify() == []
        assert await store.drop_unfinished_imports() == 1
        assert await store.drop_unfinished_imports() == 0

    assert sql(path, "SELECT count(*) FROM turns") == [(2,)]
    with_store(path, play)
    assert leftovers(path) == before


def test_a_running_import_is_not_cleared(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "SLICE_SECONDS", 0.001)
    file = document(tmp_path / "deep.json", chain(1000))

    async def play(store: SessionStore) -> None:
        begun = asyncio.Event()
        work = asyncio.ensure_future(store.import_file(file, lambda _done, _total: begun.set()))
        await begun.wait()
        assert await store.drop_unfinished_imports() == 0
        await work

    with_store(path, play)
    assert sql(path, "SELECT count(*) FROM turns") == [(1000,)]


def test_a_file_of_many_conversations_is_imported_in_full_or_not_at_all(path: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"messages": [{"role": "user", "content": f"question {n}"}]}) for n in range(40)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines) + "\n")
    imported = taken(path, tmp_path / "many.jsonl")
    rows = with_store(path, lambda store: store.sessions())
    assert [row.id for row in rows] == list(imported.sessions)
    assert [row.title for row in rows] == [f"question {n}" for n in range(40)]
    (tmp_path / "many.jsonl").write_text("\n".join([*lines, '{"messages": [7]}']))
    before = leftovers(path)
    with pytest.raises(InvalidFileError, match="line 41, message 1"):
        taken(path, tmp_path / "many.jsonl")
    assert leftovers(path) == before


def test_a_list_of_messages_is_imported_as_a_path(path: Path, tmp_path: Path) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where "}, {"type": "input_text", "text": "to?"}], "name": "x"},
        {"role": "assistant", "content": "Lisbon \ud83c\udf27\n", "tool_calls": []},
    ]
    shapes = {
        "list": json.dumps(messages),
        "object": json.dumps({"model": "gpt", "tools": [{"a": [1]}], "messages": messages, "temperature": 0.5}),
        "titled": json.dumps({"title": "My trip", "messages": messages}),
        "lines": "\n".join(json.dumps(each) for each in messages),
        "bom": "\ufeff" + json.dumps(messages, indent=2),
    }
    for name, text in shapes.items():
        (tmp_path / name).write_text(text)
        [session] = taken(path, tmp_path / name).sessions
        tree = with_store(path, lambda store, session=session: store.load_session(session))  # type: ignore[misc]  # bound now
        assert tree.session.title == ("My trip" if name == "titled" else "Where to?")
        assert [(n.role, n.text) for n in tree.nodes] == [
            ("system", "Be brief."), ("user", "Where to?"), ("assistant", "Lisbon \U0001f327\n"),
        ]  # fmt: skip
        assert [n.parent_id for n in tree.nodes] == [None, tree.nodes[0].id, tree.nodes[1].id]
        assert tree.session.current_node == tree.nodes[2].id
        assert tree.session.branches == 1
    assert with_store(path, lambda store: store.verify()) == []


def test_a_path_is_exported_as_a_table_of_tokens(path: Path, tmp_path: Path) -> None:
    session, _, _ = with_store(path, chat)
    export_text("csv", path, session, tmp_path / "t.csv", lambda _d, _t: None)
    export_text("tokens", path, session, tmp_path / "t.jsonl", lambda _d, _t: None)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0].startswith("position,turn,role,node,offset,model,id,text,origin,logprob,")
    assert len(lines) == 1 + 4 + 6
    records = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [(r["position"], r["turn"], r["id"], r["text"]) for r in records[3:6]] == [
        (3, 1, 3, "w3 "), (4, 2, 0, "w0 "), (5, 2, 1, "w1 "),
    ]  # fmt: skip
    assert records[0]["logprob"] == -1.25
    assert records[0]["surprisal_bits"] == pytest.approx(1.803, abs=1e-3)
