"""Every option of loading and generating on the command line, with invalid values, and the wording of the refusals."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from app.cli.options import OPTION_HINTS, in_json, in_options
from runtime import GenerationOptions, LoadOptions, SamplingOptions
from runtime.options import aliases
from tests.app.cli.conftest import Elsewise
from tests.tiny_models import tiny_path

FAKE = ("--backend", "fake")
VALUES = (
    "null",
    "true",
    "NaN",
    "-1",
    "0",
    "1e-40",
    "1e300",
    "9223372036854775808",
    str(2**200),
    "x",
    "",
    "[]",
    "{}",
    "[[" * 9999,
)
PYTHON = re.compile(r"\b(True|False|None)\b|(?<!--load )\b\w+=['\"(]|\bload\(|GenerationOptions|model\.[a-z]")
GENERATING = {field.name for field in (*fields(GenerationOptions), *fields(SamplingOptions))}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [field.name for field in fields(LoadOptions)])
def test_an_invalid_load_option_is_refused_with_command_line_names(elsewise: Elsewise, name: str) -> None:
    for value in VALUES:
        done = elsewise("ask", "--raw", "hi", "--max-tokens", "1", *FAKE, "--load", f"{name}={value}")
        assert done.code in (0, 1, 2)
        said = done.err.partition("Error: ")[2]
        assert not PYTHON.search(said)
        if done.code == 2:
            assert f"--load {name}" in said or "--load: " in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(GENERATING - OPTION_HINTS.keys()))
def test_an_invalid_generation_option_is_refused_with_command_line_names(elsewise: Elsewise, name: str) -> None:
    for value in VALUES:
        done = elsewise("ask", "--raw", "hi", *FAKE, "--option", "max_tokens=1", "--option", f"{name}={value}")
        assert done.code in (0, 1, 2)
        said = done.err.partition("Error: ")[2]
        assert not PYTHON.search(said)
        flag = f"--{name.replace('_', '-')}"
        assert done.code != 2 or f"--option {name}" in said or flag in said


@pytest.mark.slow
def test_an_invalid_line_of_a_batch_is_refused_with_json_names(elsewise: Elsewise, file: Path) -> None:
    for name in sorted(GENERATING - {"adapters", "sampling", "stages"}):
        values: tuple[Any, ...] = (True, -1, 2**200, "x", [], {})
        lines = [json.dumps({"prompt": "hi", "max_tokens": 1, name: value}) for value in values]
        for line in lines:
            file.write_text(line)
            done = elsewise("ask", "--raw", "--batch", str(file), *FAKE)
            assert done.code in (0, 1, 2)
            said = done.err.partition("cannot be:")[2]
            assert not PYTHON.search(said)
            assert done.code != 2 or f'"{name}"' in said or name in said


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(aliases.OPTION_HINTS))
def test_options_with_another_place_name_it_in_command_line_terms(elsewise: Elsewise, file: Path, name: str) -> None:
    done = elsewise("ask", "hi", *FAKE, "--option", f"{name}=1")
    assert (done.code, f"--option {name}: use " in done.err) == (2, True)
    file.write_text(json.dumps({"prompt": "hi", name: 1}))
    in_batch = elsewise("ask", "--batch", str(file), *FAKE)
    assert in_batch.code == 2
    for each in (done, in_batch):
        assert "Python:" in each.err or not PYTHON.search(each.err.partition("Error: ")[2])


def test_a_load_option_given_as_a_generation_option_names_the_load_flag(elsewise: Elsewise) -> None:
    done = elsewise("ask", "hi", *FAKE, "--option", "threads=2")
    assert (done.code, "use --load threads=2" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("said", "on_command_line"),
    [
        ("device 'x' is not on this machine; use device='cpu'", "device 'x' is not on this machine; use --load device=cpu"),
        ("weights quantised for MLX; load it with backend='mlx'", "weights quantised for MLX; load it with --backend mlx"),
        ("; raise kv_cache_bytes (`set_kv_budget`) or shorten the text", "; raise --load kv_cache_bytes or shorten the text"),
        ("a draft model is loaded: load(..., draft_model=...)", "a draft model is loaded: --load draft_model=VALUE"),
        ("the cache is off (cache=False)", "the cache is off (--load cache=false)"),
        ("load it with one (chat_format='chatml')", "load it with one (--format chatml)"),
        ("max_tokens=0 and ignore_eos=True", "--max-tokens 0 and --option ignore_eos=true"),
        ("a/max_tokens.jsonl: no such file", "a/max_tokens.jsonl: no such file"),
        ("--option top_p=2: did you mean 'top_p'?", "--option top_p=2: did you mean 'top_p'?"),
    ],
)
def test_pythons_keywords_become_options(said: str, on_command_line: str) -> None:
    assert in_options(said) == on_command_line


def test_the_names_in_a_line_are_those_of_json() -> None:
    assert in_json("max_tokens=0 and do_sample=True") == '"max_tokens": 0 and "do_sample": true'
    assert in_json("temperature 'x'; use device='cpu'") == "temperature 'x'; use --load device=cpu"


def test_load_errors_use_command_line_options_too(elsewise: Elsewise, tmp_path: Path) -> None:
    done = elsewise("ask", "--raw", "hi", *FAKE, "--load", "context_length=999999999")
    assert (done.code, "--load context_length=999,999,999, but the model has" in done.err) == (1, True)


@pytest.mark.parametrize("command", ["ask", "score", "embed", "lens", "serve", "against"])
def test_an_empty_name_of_a_model_is_not_taken_for_the_default(elsewise: Elsewise, tmp_path: Path, command: str) -> None:
    # given a script whose variable is not set
    text = tmp_path / "a.txt"
    text.write_text("a b c")
    arguments = {
        "ask": ("ask", "hi", "--model", ""),
        "serve": ("serve", "", "--port", "0"),
        "against": ("score", str(text), "--model", str(tiny_path("llama")), "--against", ""),
    }.get(command, (command, str(text), "--model", ""))
    done = elsewise(*arguments, "--backend", "hf")
    assert (done.code, done.out) == (1, "")
    assert "no model was named" in done.err
