"""`elsewise score --against`: two models on one text."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from runtime import load
from tests.app.cli.conftest import Elsewise
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path

TEXT = "so it goes, é\n\t“quoted”"


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return str(path)


def test_two_models_are_shown_side_by_side(elsewise: Elsewise, text: str) -> None:
    tiny = str(tiny_path("llama"))
    done = elsewise("score", text, "--backend", "fake", "--against", tiny, "--against-backend", "hf", "--json", "--kl")
    *rows, summary = [json.loads(line) for line in done.out.splitlines()]
    assert "".join(row["text"] for row in rows) == TEXT
    assert bytes.fromhex("".join(row["bytes"] for row in rows)).decode() == TEXT
    with load(tiny, backend="hf") as model:
        ids = model.tokenize(TEXT)
        assert [row["against_tokens"] for row in rows] == [1] * len(ids)  # each of its token borders is a byte border
        numbers = model.next_token_logprobs_sync(ids[:3])
        assert rows[3]["against_logprob"] == pytest.approx(float(numbers[ids[3]]), abs=1e-5)
        assert rows[3]["against_likeliest"] == model.decode_token(int(numbers.argmax())).decode(errors="replace")
    for row in rows[1:]:
        assert row["difference"] == pytest.approx(row["against_logprob"] - row["logprob"])
        assert "kl" not in row
    assert (rows[0]["logprob"], rows[0]["against_logprob"], rows[0]["difference"]) == (None, None, None)
    assert (summary["aligned_by"], summary["places"]) == ("bytes", len(rows))
    assert summary["right"]["logprob"] == pytest.approx(sum(row["against_logprob"] for row in rows[1:]))
    assert "the tokenizers differ, aligned by bytes" in done.err
    assert done.err.count("a byte") == 2


@pytest.mark.slow
def test_each_model_has_weights_and_options_of_its_own(elsewise: Elsewise, text: str) -> None:
    tiny = str(tiny_path("llama"))

    def rows(*given: str) -> tuple[list[dict[str, float]], str]:
        done = elsewise("score", text, "--model", tiny, "--backend", "hf", "--load", "device=cpu", "--json", *given)
        return [json.loads(line) for line in done.out.splitlines()][1:-1], done.err

    one, err = rows("--against-weights", "int8", "--against-load", "device=cpu")
    other, _ = rows("--weights", "int8", "--against-weights", "bfloat16", "--against-load", "device=cpu")
    plain, _ = rows("--against-load", "kv_dtype=q8", "--against-load", "device=cpu")
    assert [row["against_logprob"] for row in one] == pytest.approx([row["logprob"] for row in other], abs=1e-5)
    assert [row["logprob"] for row in one] == pytest.approx([row["logprob"] for row in plain], abs=1e-5)
    for found in (one, other):
        assert max(abs(row["difference"]) for row in found) > 1e-3
    assert "weights=int8" in err


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--against-load", "kv_dtype"], "write NAME=VALUE"),
        (["--load", "kv_dtype=q8", "--load", "kv_dtype=q4"], "is given twice"),
        (["--against-load", "kv_dtpye=q8"], "kv_dtype"),
        (["--against-load", "kv_dtype=q5"], "q5"),
    ],
)
def test_invalid_options_are_refused_before_a_model_is_loaded(
    elsewise: Elsewise, text: str, given: list[str], why: str
) -> None:
    done = elsewise("score", text, "--model", "nowhere", *given)
    assert done.code != 0
    assert why in done.err


def test_a_model_is_compared_with_itself_under_an_adapter(elsewise: Elsewise, text: str, tmp_path: Path) -> None:
    folder = toy_adapter(tmp_path / "A", 1)
    done = elsewise("score", text, "--backend", "fake", "--against-adapter", f"{folder}:0.5", "--kl", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert len(rows) == len(TEXT.encode())
    assert any(float(row["difference"]) for row in rows[1:])
    assert all(float(row["kl"]) >= 0 for row in rows[1:])
    same = elsewise("score", text, "--backend", "fake", "--against-backend", "fake", "--csv")
    assert {row["difference"] for row in list(csv.DictReader(io.StringIO(same.out)))[1:]} == {"0.0"}


def test_the_table_marks_tokens_at_which_the_models_disagree(elsewise: Elsewise, text: str, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "A", 1))
    done = elsewise("score", text, "--backend", "fake", "--against-adapter", folder, "--kl")
    lines = done.out.splitlines()
    assert len(lines) == 1 + len(TEXT.encode())
    assert [word in lines[0] for word in ("B - A", "rank B", "KL", "B says")] == [True] * 4
    starred = sum(line.rstrip().endswith("*") for line in lines)
    assert starred > 0
    assert f"{starred:,} of {len(TEXT.encode()):,} places disagree" in done.err


def test_models_and_texts_that_cannot_be_compared_are_refused(elsewise: Elsewise, text: str, tmp_path: Path) -> None:
    done = elsewise("score", text, "--backend", "fake", "--kl")
    assert (done.code, done.out) == (2, "")
    assert "--against" in done.err
    done = elsewise("score", text, "--backend", "fake", "--against", str(tmp_path / "nowhere"), "--against-backend", "hf")
    assert (done.code, done.out) == (1, "")
    assert "nowhere" in done.err
