"""Pipes, devices and enormous files in place of a text file: refused by name, without waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.app.cli.conftest import Elsewise
from tests.tiny_models import tiny_path

pytestmark = pytest.mark.timeout(60)

COMMANDS = {
    "score": ("score", "FILE"),
    "embed": ("embed", "FILE"),
    "jsonl": ("score", "FILE.jsonl", "--out", "OUT.parquet"),
    "csv": ("score", "FILE.csv", "--out", "OUT.parquet"),
    "parquet": ("score", "FILE.parquet", "--out", "OUT.parquet"),
    "lens": ("lens", "FILE"),
    "batch": ("ask", "--batch", "FILE"),
    "schema": ("ask", "hi", "--schema", "FILE"),
    "lark": ("ask", "hi", "--lark", "FILE"),
    "sessions": ("sessions", "import", "FILE"),
    "models": ("models", "import", "FILE"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["pipe", "device", "enormous"])
@pytest.mark.parametrize("command", COMMANDS)
def test_special_files_are_refused_without_waiting(command: str, kind: str, elsewise: Elsewise, tmp_path: Path) -> None:
    # given
    [word] = [word for word in COMMANDS[command] if word.startswith("FILE")]
    file = tmp_path / word.replace("FILE", "given")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as stream:
            stream.truncate(1 << 40)
    words = [str(file) if each == word else each.replace("OUT", f"{tmp_path}/out") for each in COMMANDS[command]]
    model = [] if command in ("sessions", "models") else ["--model", str(tiny_path("llama"))]
    # when
    done = elsewise(*words, *model)
    # then
    assert done.code not in (0, 130)
    assert "given" in done.err
    if kind != "enormous":
        assert {"pipe": "a named pipe", "device": "a device"}[kind] in done.err


def test_a_grammar_longer_than_any_file_name_is_accepted(elsewise: Elsewise) -> None:
    grammar = f'start: "{"a" * 5000}"'
    done = elsewise("ask", "hi", "--model", "mock", "--backend", "mock", "--lark", grammar, "--max-tokens", "1")
    assert done.out.startswith("a")
