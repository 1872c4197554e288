"""Weights in fewer bits on the command line: requested, named beside the numbers, and stored with the facts of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.loading.measurements import keep_measurement, keep_perplexities
from tests.app.cli.conftest import Elsewise
from tests.tiny_models import tiny_folder, tiny_path


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


def on_hf() -> tuple[str, ...]:
    return "--model", str(tiny_path("llama")), "--backend", "hf"


def test_the_summary_of_an_answer_names_the_form_of_the_weights(elsewise: Elsewise) -> None:
    asked = elsewise("ask", "Hi", *on_hf(), "--weights", "int8", "--max-tokens", "2", "--seed", "7")
    assert asked.code == 0
    note, last = asked.err.splitlines()[0], asked.err.splitlines()[-1]
    assert "weights are held in int8" in note
    assert "perplexity of a fixed text" in note
    assert last.endswith("seed 7, float32, int8 weights")


@pytest.mark.slow
def test_all_commands_that_print_numbers_name_the_form_of_the_weights(elsewise: Elsewise, tmp_path: Path) -> None:
    model = on_hf()
    told = elsewise("ask", "Hi", *model, "--weights", "int8", "--max-tokens", "2", "--json")
    assert json.loads(told.out.splitlines()[-1])["precision"] == "float32, int8 weights"
    in_session = elsewise("ask", "Hi", *model, "--weights", "int8", "--max-tokens", "2", "--session", "s")
    assert in_session.err.splitlines()[-1].endswith(", float32, int8 weights")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "Hi"}')
    batch = elsewise("ask", "--batch", str(tmp_path / "lines.jsonl"), *model, "--weights", "int8", "--max-tokens", "2")
    assert "1 answers, 2 tokens, float32, int8 weights" in batch.err
    (tmp_path / "text.txt").write_text("Some words to score.")
    scored = elsewise("score", str(tmp_path / "text.txt"), *model, "--weights", "int4")
    assert scored.err.splitlines()[-1].endswith("float32, int4 weights")
    # and without the option it is not mentioned
    plain = elsewise("score", str(tmp_path / "text.txt"), *model)
    assert "weights" not in plain.err
    assert "precision" not in json.loads(elsewise("ask", "Hi", *model, "--max-tokens", "1", "--json").out.splitlines()[-1])


def test_info_shows_the_measurements_of_a_model(elsewise: Elsewise, tmp_path: Path) -> None:
    assert elsewise("models", "add", str(tiny_path("llama")), "--name", "tiny").code == 0
    digest = tiny_folder("llama").weights_digest
    assert "perplexity" not in elsewise("models", "info", "tiny").out
    (tmp_path / "text.txt").write_text("Some words.")
    model = ("--model", "tiny", "--backend", "hf", "--weights", "int8")
    assert elsewise("score", str(tmp_path / "text.txt"), *model).code == 0
    assert "perplexity (int8)" in elsewise("models", "info", "tiny").out
    keep_perplexities(digest, {"float32": 40.0, "int8": 41.0, "float16": 40.0})
    keep_measurement(digest, "threads, int8, some machine", {"1": 0.02, "2": 0.0123})
    after = elsewise("models", "info", "tiny").out
    assert "41, float32 40 (+2.5 %)" in after
    assert "40, float32 40 (+0.0 %)" in after
    assert "1: 20.0 ms, 2: 12.3 ms a token (some machine)" in after
    told = json.loads(elsewise("models", "info", "tiny", "--json").out)
    assert {"weights": "int8", "plain": 40.0, "packed": 41.0} in told["perplexity"]
    assert told["thread_seconds"] == {"int8, some machine": {"1": 0.02, "2": 0.0123}}


def test_a_model_that_cannot_be_converted_is_refused_in_one_line(elsewise: Elsewise) -> None:
    done = elsewise("models", "convert", "nowhere")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "nothing on the shelf is called so" in done.err
    assert elsewise("models", "convert", "nowhere", "--bits", "5").code == 2


@pytest.mark.slow
def test_a_converted_model_is_listed_with_its_bits_and_answers(elsewise: Elsewise) -> None:
    assert elsewise("models", "add", str(tiny_path("llama")), "--name", "org/tiny").code == 0
    done = elsewise("models", "convert", "org/tiny", "--bits", "8")
    assert done.code == 0
    assert "org--tiny-8bit" in done.out
    assert "8 bit (mlx)" in elsewise("models", "list").out
    asked = elsewise("ask", "Hi", "--model", "org/tiny-8bit", "--backend", "mlx", "--max-tokens", "2")
    assert asked.code == 0
    assert asked.err.splitlines()[-1].endswith("float32, 8 bits, groups of 64")
