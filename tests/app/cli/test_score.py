"""`elsewise score`: a table, JSON lines, CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path

import pytest

from runtime import load
from tests.app.cli.conftest import Elsewise, stdin_of

TEXT = "so it goes, é\n\t“quoted”"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return str(path)


def test_json_has_the_models_numbers(elsewise: Elsewise, file: str) -> None:
    done = elsewise("score", file, "--backend", "fake", "--json", "--alternatives", "4")
    rows = [json.loads(line) for line in done.out.splitlines()]
    with load("x", backend="fake") as model:
        ids = model.tokenize(TEXT)
        assert [row["id"] for row in rows] == ids
        for at in (1, len(ids) - 1):
            logprobs = model.next_token_logprobs_sync(ids[:at])
            assert rows[at]["logprob"] == pytest.approx(float(logprobs[ids[at]]), abs=1e-5)
            assert rows[at]["rank"] == 1 + int((logprobs > logprobs[ids[at]]).sum())
            assert [t["id"] for t in rows[at]["top"]] == logprobs.argsort()[::-1][:4].tolist()
    assert bytes.fromhex("".join(row["bytes"] for row in rows)).decode() == TEXT
    assert (rows[0]["logprob"], rows[0]["rank"], rows[0]["top"]) == (None, None, [])


def test_csv_has_a_header_and_as_many_rows_as_tokens(elsewise: Elsewise, file: str) -> None:
    done = elsewise("score", file, "--backend", "fake", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    as_json = [json.loads(line) for line in elsewise("score", file, "--backend", "fake", "--json").out.splitlines()]
    assert [int(row["id"]) for row in rows] == [row["id"] for row in as_json]
    assert [row["text"] for row in rows] == [row["text"] for row in as_json]
    assert float(rows[5]["logprob"]) == as_json[5]["logprob"]
    assert int(rows[5]["top1_id"]) == as_json[5]["top"][0]["id"]
    assert rows[0]["logprob"] == ""


def test_the_table_has_a_line_per_token_and_the_sum_is_on_stderr(elsewise: Elsewise, file: str) -> None:
    done = elsewise("score", file, "--backend", "fake")
    as_json = [json.loads(line) for line in elsewise("score", file, "--backend", "fake", "--json").out.splitlines()]
    assert len(done.out.splitlines()) == 1 + len(TEXT.encode())
    logprobs = [row["logprob"] for row in as_json[1:]]
    assert f"log-probability {sum(logprobs):,.2f} nats" in done.err
    assert f"perplexity {math.exp(-sum(logprobs) / len(logprobs)):,.2f}" in done.err


def test_a_dash_reads_stdin(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(b"abc"))
    done = elsewise("score", "-", "--backend", "fake", "--json")
    assert [json.loads(line)["text"] for line in done.out.splitlines()] == ["a", "b", "c"]


def test_texts_that_cannot_be_scored_are_refused(elsewise: Elsewise, tmp_path: Path, file: str) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes("café".encode("latin-1"))
    (tmp_path / "long").write_text("x" * 40_000)
    for name, code, words in (
        ("missing", 1, "No such file"),
        ("empty", 1, "empty; there is nothing to score"),
        ("latin", 1, "not UTF-8 at byte 3"),
        ("long", 1, "do not fit into the context of 32,768"),
        (".", 1, "Is a directory"),
    ):
        done = elsewise("score", str(tmp_path / name), "--backend", "mock")
        assert (done.code, done.out) == (code, ""), name
        assert words in done.err
    assert elsewise("score", file, "--json", "--csv").code == 2
    for beside in (("--against-load", "device=cpu"), ("--kl",)):
        done = elsewise("score", file, "--backend", "fake", "--out", str(tmp_path / "out.csv"), *beside)
        assert (done.code, "--out takes no" in done.err) == (2, True), done.err


def test_the_old_name_of_alternatives_is_accepted_with_a_note(elsewise: Elsewise, file: str) -> None:
    now = elsewise("score", file, "--backend", "fake", "--json", "--alternatives", "2")
    before = elsewise("score", file, "--backend", "fake", "--json", "--top-k", "2")
    assert before.out == now.out
    assert before.err.startswith("note: --top-k is called --alternatives here now")
    assert "note" not in now.err
    assert elsewise("score", file, "--backend", "fake", "--top-k", "2", "--alternatives", "2").code == 2


def test_a_stride_scores_a_text_longer_than_the_context(elsewise: Elsewise, tmp_path: Path) -> None:
    text = "so it goes on and on. " * 9
    (tmp_path / "long").write_text(text)
    call = ("score", str(tmp_path / "long"), "--backend", "fake", "--load", "context_length=64")
    refused = elsewise(*call)
    assert (refused.code, refused.out) == (1, "")
    assert "198 tokens do not fit into the context of 64; score them in windows: --stride 32" in refused.err
    # every token is scored once, those of later windows after at least 64 - 24 others
    done = elsewise(*call, "--stride", "24", "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert "".join(row["text"] for row in rows) == text
    with load("x", backend="fake") as model:
        ids = model.tokenize(text)
        for at, begin in ((63, 0), (64, 24), (87, 24), (88, 48), (197, 144)):
            logprobs = model.next_token_logprobs_sync(ids[begin:at])
            assert rows[at]["logprob"] == pytest.approx(float(logprobs[ids[at]]), abs=1e-5), at
    mean = sum(row["logprob"] for row in rows[1:]) / 197
    assert f"198 tokens, log-probability {mean * 197:,.2f} nats, perplexity {math.exp(-mean):,.2f}" in done.err
    assert "leaves nothing before a window" in elsewise(*call, "--stride", "64").err
    assert "leave out --against" in elsewise(*call, "--stride", "24", "--against-backend", "mock").err


def test_one_token_has_nothing_before_it(elsewise: Elsewise, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a")
    done = elsewise("score", str(tmp_path / "one"), "--backend", "fake")
    assert (done.code, len(done.out.splitlines())) == (0, 2)
