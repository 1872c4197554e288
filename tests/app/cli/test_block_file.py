"""An unusable block file is reported in one line on stderr, and as an error in Python; the answer is printed all the same."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from runtime import BlockFileError, BlockOptions, load
from storage import open_blocks

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 60
BUDGET = 1 << 24


@contextmanager
def locked(path: Path) -> Iterator[None]:
    open_blocks(path, BUDGET).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def a_folder(path: Path) -> Iterator[None]:
    path.mkdir()
    yield


@contextmanager
def a_pipe(path: Path) -> Iterator[None]:
    os.mkfifo(path)
    yield


@contextmanager
def newer(path: Path) -> Iterator[None]:
    open_blocks(path, BUDGET).close()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA user_version = 9")
    yield


UNUSABLE = {
    "locked": (locked, "another program holds the block file"),
    "a folder": (a_folder, "it is no regular file; move it away"),
    "a pipe": (a_pipe, "it is no regular file; move it away"),
    "newer": (newer, "was written by a newer version (schema 9); it was not touched"),
}


@pytest.mark.slow
def test_the_answer_is_printed_with_one_line_about_the_file(data: Path) -> None:
    data.mkdir()
    command = [sys.executable, "-m", "app", "--data-dir", str(data), "ask", "hi", "--session", "A"]
    with locked(data / "blocks.db"):
        done = subprocess.run(
            [*command, "--backend", "fake", "--max-tokens", "3"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    told = [line for line in done.stderr.splitlines() if "block file" in line]
    assert (done.returncode, len(told), "Traceback" in done.stderr) == (0, 1, False), done.stderr
    assert str(data / "blocks.db") in told[0]
    assert UNUSABLE["locked"][1] in told[0]
    assert told[0].startswith("elsewise: the block file:")  # and without the name of the module that reports it
    assert done.stderr.splitlines()[-1].startswith("3 tokens, length")


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
@pytest.mark.parametrize("kind", UNUSABLE)
def test_functions_that_need_the_file_raise_an_error_with_the_reason(kind: str, tmp_path: Path) -> None:
    make, words = UNUSABLE[kind]
    with make(tmp_path / "blocks.db"):
        blocks = BlockOptions("storage:open_blocks", str(tmp_path / "blocks.db"), BUDGET)
        with load("x", "fake", blocks=blocks) as model:
            ids = model.tokenize("so it goes " * 30)
            model.cache_kv(ids)
            for act in (lambda: model.save_blocks(ids), lambda: model.pin_blocks("mine", [])):
                with pytest.raises(BlockFileError) as refused:
                    act()
                assert words in str(refused.value)
            assert words in model.info.warnings[0]


def test_a_second_model_on_the_same_file_gets_an_error(tmp_path: Path) -> None:
    blocks = BlockOptions("storage:open_blocks", str(tmp_path / "blocks.db"), BUDGET)
    with load("x", "fake", blocks=blocks) as first:
        ids = first.tokenize("so it goes " * 30)
        first.cache_kv(ids)
        assert first.save_blocks(ids).blocks > 0  # it has the file open
        with load("x", "fake", blocks=blocks) as second:
            second.cache_kv(ids)
            with pytest.raises(BlockFileError, match="another program holds the block file"):
                second.save_blocks(ids)
            assert second.next_token_logprobs_sync(ids).tolist() == first.next_token_logprobs_sync(ids).tolist()
