"""Objects of the parent refuse every use in a forked child, and the end of the child does not affect the parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import tiny_path

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 200

BEGIN = """
import asyncio, os, sys, time
from pathlib import Path
FOLDER, BACKEND, PLACE = sys.argv[1], sys.argv[2], Path(sys.argv[3])
IDS = list(range(10, 40))

def refused(**uses):
    "Forks; the child tries all of it, tells how it went, and ends as any program does."
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("child ended with", status, flush=True)
        return
    for name, use in uses.items():
        try:
            print(name, "gave", type(use()).__name__, flush=True)
        except Exception as error:
            print(name, "raised", type(error).__name__, "spawn" in str(error), flush=True)
    sys.exit(3)
"""

MODEL = """
CHAT = [{"role": "user", "content": "hi"}]
FEW = GenerationOptions(max_tokens=8, seed=1, ignore_eos=True)
MANY = GenerationOptions(max_tokens=300, seed=1, ignore_eos=True)
stream = model.generate_sync(IDS, MANY)
next(stream)
model.render_chat(CHAT)
expected = [record.token_id for record in model.generate_sync(IDS, FEW)]
rendered = model.render_chat(CHAT)
refused(
    query=lambda: model.next_token_logprobs_sync(IDS),
    begun=lambda: list(stream),
    stream=lambda: next(model.generate_sync(IDS, FEW)),
    coroutine=lambda: asyncio.run(model.next_token_logprobs(IDS)),
    text=lambda: asyncio.run(model.complete("hi", FEW)),
    grammar=lambda: list(model.generate_sync(IDS, GenerationOptions(grammar=Grammar.regex("a+")))),
    chat=lambda: model.render_chat(CHAT),
    cache=lambda: model.clear_cache(),
    close=lambda: model.close(),
)
assert [record.token_id for record in model.generate_sync(IDS, FEW)] == expected
assert model.render_chat(CHAT) == rendered
assert len(list(stream)) == 299
model.close()
print("parent is fine")
"""
IN_PROCESS = "from runtime import GenerationOptions, Grammar, load\nmodel = load(FOLDER, BACKEND)\n" + MODEL
SPAWNED = "from runtime import GenerationOptions, Grammar, spawn\nmodel = asyncio.run(spawn(FOLDER, BACKEND))\n" + MODEL
LOADED_AGAIN = """
from runtime import load
model = load(FOLDER, BACKEND)
refused(load=lambda: load(FOLDER, BACKEND))
model.next_token_logprobs_sync(IDS)
print("parent is fine")
"""
STORE = """
from storage import DataFolderLock, SessionStore
lock = DataFolderLock(PLACE)
assert lock.acquire()
store = SessionStore.open(PLACE / "sessions.sqlite")
asyncio.run(store.create_session("first"))
refused(
    read=lambda: asyncio.run(store.sessions()),
    write=lambda: asyncio.run(store.create_session("child")),
    close=lambda: store.close_sync(),
    lock=lambda: lock.release(),
)
assert lock.held and not DataFolderLock(PLACE).acquire()
asyncio.run(store.create_session("second"))
assert [row.title for row in asyncio.run(store.sessions())] == ["second", "first"]
store.close_sync()
store = SessionStore.open(PLACE / "sessions.sqlite")
assert len(asyncio.run(store.sessions())) == 2
store.close_sync()
print("parent is fine")
"""
BLOCKS = """
import hashlib
from storage import open_blocks
from types import SimpleNamespace
def block(i):
    key = hashlib.sha256(bytes([i])).digest()
    return SimpleNamespace(key=key, parent=None, tokens=64, data=[bytes([i]) * 100_000])
blocks = open_blocks(PLACE / "blocks.sqlite", 1 << 30)
first, second = block(1), block(2)
blocks.put([first])
refused(get=lambda: blocks.get([first.key]), put=lambda: blocks.put([block(3)]), close=lambda: blocks.close())
blocks.put([second])
assert [len(data) for data in blocks.get([first.key])] == [100_000]
blocks.close()
blocks = open_blocks(PLACE / "blocks.sqlite", 1 << 30)
assert blocks.stats().blocks == 2, blocks.stats()
blocks.close()
print("parent is fine")
"""


def ran(script: str, backend: str, place: Path) -> list[str]:
    """The output of a process that runs the script."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script, str(tiny_path("llama")), backend, str(place)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "backend"),
    [
        (IN_PROCESS, "mlx"),
        pytest.param(IN_PROCESS, "hf", marks=pytest.mark.slow),
        pytest.param(SPAWNED, "mlx", marks=pytest.mark.slow),
        pytest.param(SPAWNED, "hf", marks=pytest.mark.slow),
    ],
    ids=["mlx", "hf", "spawned-mlx", "spawned-hf"],
)
def test_a_model_refuses_use_in_a_forked_child_and_keeps_serving_the_parent(script: str, backend: str, tmp_path: Path) -> None:
    *told, child, parent = ran(script, backend, tmp_path)
    refused = ("query", "begun", "stream", "coroutine", "text", "grammar", "chat", "cache")
    assert told == [*(f"{name} raised ForkedError True" for name in refused), "close gave NoneType"]
    assert (child, parent) == ("child ended with 3", "parent is fine")


@pytest.mark.slow
def test_mlx_is_not_loaded_in_a_process_forked_from_one_that_has_it(tmp_path: Path) -> None:
    assert ran(LOADED_AGAIN, "mlx", tmp_path) == ["load raised ForkedError True", "child ended with 3", "parent is fine"]


@pytest.mark.slow
def test_a_session_store_refuses_use_in_a_forked_child_and_keeps_serving_the_parent(tmp_path: Path) -> None:
    read, write, close, lock, *end = ran(STORE, "", tmp_path)
    assert (read, write) == ("read raised StoreForkedError True", "write raised StoreForkedError True")
    assert (close, lock) == ("close gave NoneType", "lock gave NoneType")
    assert end == ["child ended with 3", "parent is fine"]


@pytest.mark.slow
def test_a_block_file_refuses_use_in_a_forked_child_and_keeps_its_blocks(tmp_path: Path) -> None:
    told = ran(BLOCKS, "", tmp_path)
    assert told == [
        "get raised OSError False",
        "put raised OSError False",
        "close gave NoneType",
        "child ended with 3",
        "parent is fine",
    ]
