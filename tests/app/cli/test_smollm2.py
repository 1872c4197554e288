"""`elsewise ask` with SmolLM2, the model of the documentation's examples."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from runtime.shelf.source import resolve
from tests.app.cli.conftest import Done, Elsewise
from tests.pages import PAGES, blocks, shell_commands

pytestmark = pytest.mark.slow
GREEDY = ("--temperature", "0")


@pytest.fixture(scope="module")
def folder() -> str:
    return str(resolve("smollm2").path)  # before the test's own data folder replaces that of the machine


@pytest.fixture
def ask(folder: str, elsewise: Elsewise) -> Elsewise:
    return lambda *arguments: elsewise("ask", *arguments, "--model", folder)


def test_raw_text_is_continued(ask: Elsewise) -> None:
    done = ask("The capital of France is", "--raw", "--max-tokens", "2", *GREEDY)
    assert (done.code, done.out.split()[0]) == (0, "Paris.")


BLOCKS = [block for page in PAGES.values() for block in blocks(page, "sh")]
ASKED = [line for line in shell_commands(*BLOCKS) if line.startswith("elsewise ask ")]
EXAMPLES = list(dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in ASKED))  # each once
OWN = ("--model", "--adapter", "--batch", "--schema", "my.jinja")  # these need files that the reader has, or has just written
WRITES = ("cat ", "echo ", "printf ")  # files for the commands below them


@pytest.mark.parametrize("words", [e for e in EXAMPLES if not set(OWN) & set(e)], ids=" ".join)
def test_the_examples_answer(ask: Elsewise, words: tuple[str, ...]) -> None:
    _, _, *arguments = words
    limit = () if "--max-tokens" in arguments else ("--max-tokens", "8")
    done = ask(*arguments, *limit)
    assert done.code == 0, done.err
    assert done.out.strip()


Walk = Callable[..., dict[str, Done]]


def _redirected(words: list[str]) -> tuple[list[str], list[str]]:
    """A command, and the file for its answer, if any."""
    return (words[: words.index(">")], words[words.index(">") + 1 :]) if ">" in words else (words, [])


@pytest.fixture
def walk(elsewise: Elsewise, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """Writes the files of the block with some words, and runs its commands that have one of the words; returns the outputs."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, more: Sequence[str] = ()) -> dict[str, Done]:
        [block] = [block for block in BLOCKS if all(word in block for word in words)]
        found: dict[str, Done] = {}
        for command in shell_commands(block):
            if command.startswith(WRITES) and "elsewise" not in command:
                subprocess.run(["sh", "-c", command], check=True, timeout=60)
            elif command.startswith("elsewise ") and any(word in command for word in words):
                _, *arguments = shlex.split(command, comments=True)
                arguments, into = _redirected(arguments)
                done = elsewise(*arguments, *more, "--model", folder)
                assert done.code == 0, (command, done.err)
                for name in into:
                    Path(name).write_text(done.out, "utf-8")
                found[" ".join(arguments)] = done
        return found

    return run


def test_the_schema_and_the_template_answer(walk: Walk) -> None:
    person, hello = walk("--schema person.json", "my.jinja", more=GREEDY).values()
    told = json.loads(person.out)
    assert told.keys() == {"name", "age"}
    assert len(told["name"]) <= 20
    assert hello.out.strip()
    assert "user:" not in hello.out


def test_the_batch_answers_every_line(walk: Walk) -> None:
    (done,) = walk("--batch questions.jsonl", more=("--max-tokens", "16")).values()
    answers = {answer["id"]: answer for answer in map(json.loads, done.out.splitlines())}
    lines = {name: answer["line"] for name, answer in answers.items()}  # in the order in which they were done
    assert lines == {"sea": 1, "rome": 2, "dice": 3, "long": 4, "wet": 5, "ages": 6}
    assert answers["wet"]["text"] in ("yes", "no")
    assert 1 <= int(answers["ages"]["text"]) <= 99
    assert "7" not in answers["ages"]["text"]
    assert all(answer["text"].strip() for answer in answers.values())


def test_the_example_scores_and_vectors_are_written(walk: Walk) -> None:
    said = walk("elsewise score", "elsewise embed")
    assert len(said) == 6
    assert Path("scores.parquet").stat().st_size
    rows = list(csv.DictReader(Path("scores.csv").read_text("utf-8").splitlines()))
    assert "".join(row["text"] for row in rows).strip() == "The quick brown fox jumps over the lazy dog."
    compared = [done.out for command, done in said.items() if "--against" in command]
    assert len(compared) == 2
    assert all("fox" in out for out in compared)
    vectors = np.load("notes.npy")
    assert vectors.shape[0] == 2
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_every_setting_of_the_sampler_has_an_example() -> None:
    said = {word.partition("=")[0] for example in EXAMPLES for word in example}
    wanted = {"typical_p", "xtc_probability", "dry_multiplier", "presence_penalty", "frequency_penalty", "logit_bias"}
    assert {*wanted, "banned_tokens", "order", "--top-p", "--min-p", "--top-k", "--temperature"} <= said


def test_a_session_file_is_continued_in_python(
    elsewise: Elsewise, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given the file that the commands of the page write
    monkeypatch.chdir(tmp_path)
    page = PAGES["docs/session-files.md"]
    for command in shell_commands(*blocks(page, "sh")):
        words = shlex.split(command)[1:]
        done = elsewise(*words, *(("--max-tokens", "8", "--model", folder) if words[0] == "ask" else ()))
        assert done.code == 0, (command, done.err)
    # when
    [example] = blocks(page, "python")
    exec(example.replace('"smollm2"', repr(folder)), {})  # our own page
    # then
    assert re.match(r"\d+ tokens: .*Name three colours\.", capsys.readouterr().out, re.DOTALL)


def test_the_plain_format_answers_without_writing_a_turn_of_the_user(ask: Elsewise) -> None:
    done = ask("What is the capital of Italy?", "--format", "plain", "--max-tokens", "60", *GREEDY)
    assert done.code == 0
    assert "Italy" in done.out
    assert "User:" not in done.out


def test_a_batch_answers_each_line_as_alone(ask: Elsewise, tmp_path: Path) -> None:
    prompts = ["Name a colour.", "What is the capital of Italy?", "Count to three."]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": prompt, "seed": 5}) for prompt in prompts))
    done = ask("--batch", str(file), "--max-tokens", "16", *GREEDY)
    assert done.code == 0
    answers = sorted(map(json.loads, done.out.splitlines()), key=lambda answer: int(answer["line"]))
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = ask(prompt, "--seed", "5", "--max-tokens", "16", *GREEDY).out
        assert answer["text"] == alone[:-1]


def test_tools_that_the_template_would_drop_are_refused(ask: Elsewise, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"prompt": "What time is it?", "tools": [{"function": {"name": "clock"}}]}))
    done = ask("--batch", str(file))
    assert (done.code, done.out) == (2, "")
    assert "the chat template takes no tools" in done.err
