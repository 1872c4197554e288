"""`elsewise embed`: JSON lines, .npy, stdin, refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from runtime import load
from tests.app.cli.conftest import Elsewise, stdin_of

TEXTS = ["so it goes", "é “quoted”", "so it goes"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", "utf-8")
    return str(path)


@pytest.mark.parametrize("pooling", ["last", "mean", "max", "cls"])
def test_json_lines_are_the_models_vectors(elsewise: Elsewise, file: str, pooling: str) -> None:
    done = elsewise("embed", file, "--backend", "fake", "--pooling", pooling)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    with load("x", backend="fake") as model:
        want = model.embed_sync(TEXTS, pooling)  # type: ignore[arg-type]  # a name from the list
    assert np.array_equal(np.array([row["vector"] for row in rows], np.float32), want)
    assert "3 texts, 16 numbers each" in done.err


def test_npy_and_jsonl_files_hold_the_same_vectors(elsewise: Elsewise, file: str, tmp_path: Path) -> None:
    array, lines = tmp_path / "v.npy", tmp_path / "v.jsonl"
    assert elsewise("embed", file, "--backend", "fake", "--out", str(array)).out == ""
    assert elsewise("embed", file, "--backend", "fake", "--out", str(lines)).code == 0
    vectors = np.load(array, allow_pickle=False)
    assert vectors.dtype == np.float32
    assert np.array_equal(
        vectors, np.array([json.loads(line)["vector"] for line in lines.read_text().splitlines()], np.float32)
    )
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    # and the written file is accepted as input, as texts
    assert elsewise("embed", str(lines), "--backend", "fake").out == lines.read_text()


def test_a_dash_reads_stdin(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(b"one\r\ntwo"))
    assert [json.loads(line)["text"] for line in elsewise("embed", "-", "--backend", "fake").out.splitlines()] == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", stdin_of(b'{"text": "one\\ntwo", "id": 7}\n'))
    done = elsewise("embed", "-", "--jsonl", "--backend", "fake")
    assert json.loads(done.out)["text"] == "one\ntwo"


def test_texts_that_cannot_be_embedded_are_refused(elsewise: Elsewise, tmp_path: Path, file: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "gap").write_text("a\n\nb\n")
    (tmp_path / "latin").write_bytes("café".encode("latin-1"))
    (tmp_path / "long").write_text("short\n" + "x" * 40_000)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    (tmp_path / "worse.jsonl").write_text("not json\n")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    for name, words in (
        ("missing", "No such file"),
        ("empty", "empty; there is nothing to embed"),
        ("gap", "line 2: empty"),
        ("latin", "not UTF-8 at byte 3"),
        ("long", "line 2: 40,000 tokens do not fit into the context of 32,768"),
        ("bad.jsonl", 'line 2: no object with a "text"'),
        ("worse.jsonl", "line 1: no JSON"),
        ("deep.jsonl", "line 1: no JSON"),
        (".", "Is a directory"),
    ):
        done = elsewise("embed", str(tmp_path / name), "--backend", "mock")
        assert (done.code, done.out) == (1, ""), name
        assert words in done.err
    for more in (("--pooling", "mode"), ("--out", "v.csv"), ("--no-such",)):
        assert elsewise("embed", file, "--backend", "fake", *more).code == 2
    nowhere = elsewise("embed", file, "--backend", "fake", "--out", str(tmp_path / "no" / "v.npy"))
    assert (nowhere.code, "there is no folder" in nowhere.err) == (1, True)


def test_the_command_is_listed(elsewise: Elsewise) -> None:
    assert "embed" in elsewise("--help").out
    assert "--pooling" in elsewise("embed", "--help").out
