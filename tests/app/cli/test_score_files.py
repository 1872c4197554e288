"""`elsewise score FILES --out`: many texts into one file; stopped, resumed, refused."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
from pathlib import Path
from typing import Any

import click
import pyarrow as pa  # what the command writes with
import pyarrow.parquet as pq  # as above
import pytest

from app.cli import score_files
from runtime import LanguageModel, load
from tests.app.cli.conftest import Elsewise

TEXTS = ["one <b>", 'two, "quoted"\nlines', "naïve 🌧", "שלום"]
FAKE = ("--backend", "fake")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "utf-8")
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_parquet_has_the_models_numbers_and_says_what_made_them(elsewise: Elsewise, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    done = elsewise("score", str(texts), *FAKE, "--parquet", str(out), "--alternatives", "2")
    assert (done.code, done.out) == (0, "")
    table = pq.read_table(out)
    rows = table.to_pylist()
    with load("x", backend="fake") as model:
        for number, text in enumerate(TEXTS):
            own = [row for row in rows if row["text_id"] == number]
            assert "".join(row["text"] for row in own) == text
            records = model.score_sync(model.tokenize(text), 2)
            assert [row["logprob"] for row in own] == pytest.approx([r.logprob for r in records], abs=1e-5)
            assert [row["top_ids"] for row in own] == [list(r.top_ids) for r in records]
            assert {(row["file"], row["row"]) for row in own} == {(str(texts), number + 1)}
        metadata = table.schema.metadata
        assert metadata[b"model"].decode() == model.info.name
        assert metadata[b"model_fingerprint"].decode() == model.info.model_fingerprint
        assert json.loads(metadata[b"options"]) == {"alternatives": 2, "rows": "token"}
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("rows", ["token", "text"])
def test_each_format_in_and_out_has_the_same_rows(elsewise: Elsewise, texts: Path, tmp_path: Path, rows: str) -> None:
    with (tmp_path / "in.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["n", "text"], *enumerate(TEXTS)])
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "in.parquet")
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in ("jsonl", "csv", "parquet"):
        out = tmp_path / f"out.{kind}"
        assert elsewise("score", str(tmp_path / f"in.{kind}"), *FAKE, "--out", str(out), "--rows", rows).code == 0
    found["parquet"] = pq.read_table(tmp_path / "out.parquet").to_pylist()
    first, *lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    found["jsonl"] = lines
    found["csv"] = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text("utf-8"))))
    assert first["metadata"]["model"] == "fake"
    for name in ("text_id", "row", "text", "logprob"):
        expected = [row[name] for row in found["parquet"]]
        assert [row[name] for row in found["jsonl"]] == expected
        told = [row[name] for row in found["csv"]]
        assert told == ["" if v is None else v if isinstance(v, str) else pytest.approx(v) for v in expected] or [
            float(value) if value else None for value in told
        ] == pytest.approx(expected)
    if rows == "text":
        for row in found["parquet"]:
            assert row["perplexity"] == pytest.approx(math.exp(-row["logprob"] / (row["tokens"] - 1)))


def stopped_after(monkeypatch: pytest.MonkeyPatch, n: int, error: BaseException) -> None:
    """The n-th text's results cannot be added."""
    add = score_files._Part.add
    added = 0

    def failing(self: score_files._Part, *arguments: Any) -> None:
        nonlocal added
        added += 1
        if added > n:
            raise error
        add(self, *arguments)

    monkeypatch.setattr(score_files._Part, "add", failing)


@pytest.mark.parametrize("error", [click.Abort(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_run_that_was_stopped_goes_on(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    elsewise("score", str(texts), *FAKE, "--out", str(whole))
    with monkeypatch.context() as faulty:
        stopped_after(faulty, 2, error)
        done = elsewise("score", str(texts), *FAKE, "--out", str(out))
    assert done.code != 0
    assert "--resume" in done.err
    assert not out.exists()
    # and the partial file lost its last bytes
    part = tmp_path / ".out.parquet.part"
    with part.open("r+b") as file:
        file.truncate(part.stat().st_size - 4)
    scored: list[object] = []
    many = LanguageModel.score_run

    async def counted(self: LanguageModel, *arguments: Any, **named: Any) -> Any:
        scored.append(arguments)
        return await many(self, *arguments, **named)

    monkeypatch.setattr(LanguageModel, "score_run", counted)
    done = elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume")
    assert done.code == 0
    assert "2 texts are done already; 2 texts scored" in done.err
    assert len(scored) == 2
    assert pq.read_table(out).to_pylist() == pq.read_table(whole).to_pylist()
    assert left_in(tmp_path) == []
    assert "complete" in elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume").err


def test_a_disk_that_is_full_at_the_end_leaves_no_half_file(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out.parquet"
    with monkeypatch.context() as faulty:
        faulty.setattr(score_files, "_written", full)
        done = elsewise("score", str(texts), *FAKE, "--out", str(out))
    assert "No space left on device; the results so far are in" in done.err
    assert left_in(tmp_path) == [".out.parquet.part"]
    assert not out.exists()
    assert elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume").code == 0
    assert out.exists()


def test_a_partial_file_of_something_else_is_not_gone_on_with(
    elsewise: Elsewise, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.parquet"
    with monkeypatch.context() as faulty:
        stopped_after(faulty, 2, click.Abort())
        elsewise("score", str(texts), *FAKE, "--out", str(out))
    done = elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume", "--alternatives", "7")
    assert (done.code, "begun with another model, other options" in done.err) == (1, True)
    assert left_in(tmp_path) == [".out.parquet.part"]  # as it was
    assert elsewise("score", str(texts), *FAKE, "--out", str(out), "--resume").code == 0


def test_what_cannot_be_scored_is_named_and_the_rest_goes_on(elsewise: Elsewise, tmp_path: Path) -> None:
    text, empty, out = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "out.parquet"
    text.write_text("fine", "utf-8")
    empty.write_text("", "utf-8")
    done = elsewise("score", str(empty), str(text), *FAKE, "--out", str(out))
    assert f"{empty}, row 1: left out: no tokens" in done.err
    assert set(pq.read_table(out).column("text_id").to_pylist()) == {1}
    done = elsewise("score", str(empty), *FAKE, "--out", str(out))
    assert (done.code, "there is no text that can be scored" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("cut.parquet", None, "no whole Parquet file"),
        ("other.parquet", b"PAR1 nothing", "no whole Parquet file"),
        ("bad.jsonl", b'{"text": "a"}\n{', "line 2: no JSON"),
        ("bad.jsonl", b'{"txt": "a"}\n', 'there is no "text"'),
        ("bad.csv", b"a,b\n1,2\n", 'there is no "text"'),
        ("missing.jsonl", b"", "No such file"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_words(
    elsewise: Elsewise, tmp_path: Path, name: str, content: bytes | None, why: str
) -> None:
    path, out = tmp_path / name, tmp_path / "out.parquet"
    if content is None:
        pq.write_table(pa.table({"text": TEXTS * 100}), path)
        path.write_bytes(path.read_bytes()[:-20])
    elif content:
        path.write_bytes(content)
    done = elsewise("score", str(path), *FAKE, "--out", str(out))
    assert done.code == 1
    assert why in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["a.txt", "b.txt"], "need --out"),
        (["a.txt", "--resume"], "need --out"),
        (["a.txt", "--out", "x.xlsx"], "ends in .parquet, .jsonl or .csv"),
        (["a.txt", "--parquet", "x.csv"], "ends in .parquet"),
        (["a.txt", "--out", "x.csv", "--json"], "its name says the format"),
    ],
)
def test_options_that_do_not_fit_are_refused(elsewise: Elsewise, given: list[str], why: str) -> None:
    done = elsewise("score", *given, *FAKE)
    assert done.code == 2
    assert why in done.err
