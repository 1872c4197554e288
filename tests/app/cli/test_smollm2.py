"""`elsewise ask` with the model that everybody has."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from runtime.loading.source import resolve
from tests.app.cli.conftest import Elsewise

pytestmark = pytest.mark.slow
GREEDY = ("--temperature", "0")


@pytest.fixture(scope="module")
def folder() -> str:
    return str(resolve("smollm2").path)  # before the test's own data folder takes the place of the machine's


@pytest.fixture
def ask(folder: str, elsewise: Elsewise) -> Elsewise:
    return lambda *arguments: elsewise("ask", *arguments, "--model", folder)


def test_raw_text_is_continued(ask: Elsewise) -> None:
    done = ask("The capital of France is", "--raw", "--max-tokens", "2", *GREEDY)
    assert (done.code, done.out.split()[0]) == (0, "Paris.")


README = Path(__file__).parents[3] / "README.md"
EXAMPLES = [
    shlex.split(line, comments=True)
    for block in re.findall(r"^```sh\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("elsewise ask ")
]
OWN = ("--model", "--adapter", "--batch", "--schema", "my.jinja")  # need files that the reader has, or has just written


@pytest.mark.parametrize("words", [e for e in EXAMPLES if not set(OWN) & set(e)], ids=" ".join)
def test_the_examples_of_the_readme_answer(ask: Elsewise, words: list[str]) -> None:
    _, _, *arguments = words
    limit = () if "--max-tokens" in arguments else ("--max-tokens", "8")
    done = ask(*arguments, *limit)
    assert done.code == 0, done.err
    assert done.out.strip()


def test_the_readme_has_an_example_of_every_setting_of_the_sampler() -> None:
    said = {word.partition("=")[0] for example in EXAMPLES for word in example}
    wanted = {"typical_p", "xtc_probability", "dry_multiplier", "presence_penalty", "frequency_penalty", "logit_bias"}
    assert {*wanted, "banned_tokens", "order", "--top-p", "--min-p", "--sample-top-k", "--temperature"} <= said


def test_a_plain_format_answers_and_does_not_speak_for_the_user(ask: Elsewise) -> None:
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
    for prompt, line in zip(prompts, done.out.splitlines(), strict=True):
        alone = ask(prompt, "--seed", "5", "--max-tokens", "16", *GREEDY).out
        assert json.loads(line)["text"] == alone[:-1]


def test_tools_that_its_template_would_drop_are_refused(ask: Elsewise, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"prompt": "What time is it?", "tools": [{"function": {"name": "clock"}}]}))
    done = ask("--batch", str(file))
    assert (done.code, done.out) == (2, "")
    assert "the chat template takes no tools" in done.err
