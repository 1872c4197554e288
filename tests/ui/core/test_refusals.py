"""What the window says in place of the commands that messages of the library and the store name."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT
from ui import Refusal

OPTIONS = "adapter|float32|name|plain-http|tokenizer|data-dir"
COMMAND = re.compile(rf"elsewise [a-z]+ (--)?\w|\bmake (setup|run)\b|\bpip install\b|--({OPTIONS})\b|\bset [A-Z]+_[A-Z]+")


def sentences(path: Path) -> Iterator[str]:
    """The strings of a source file, f-strings with a name in each gap."""
    tree = ast.parse(path.read_text("utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "org/name" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


@pytest.mark.slow
def test_no_message_of_an_installed_app_names_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    paths = [path for folder in ("runtime", "storage", "app/workbench") for path in (ROOT / folder).rglob("*.py")]
    found = [words for path in paths for words in sentences(path) if COMMAND.search(words)]
    assert len(found) > 20
    assert [words for words in found if COMMAND.search(str(Refusal(f"not here: {words}")))] == []


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "a.db: the file is damaged; `elsewise sessions verify` says where",
            "a.db: the file is damaged; Settings > Data says where",
        ),
        ("fetch it again: elsewise models fetch org/name@0a1b", "fetch it again: Settings > Models"),
        ("on the shelf: a; elsewise models import FOLDER puts one there", "on the shelf: a; Settings > Models puts one there"),
        ("log in with 'elsewise models login', or set a token", "log in with Settings > Models, or set a token"),
        ("import a GGUF file first: elsewise models import /a b/c.gguf", "import a GGUF file first: Settings > Models"),
        ("it refuses; log in, or set HF_TOKEN to one that may; or search", "it refuses; log in; or search"),
        ("free some space or set ELSEWISE_MODELS (7 bytes are kept)", "free some space (7 bytes are kept)"),
        ("for this host (plain_http=True, --plain-http)", "for this host"),
        (
            "no tokenizer of m is here: name one by connect(..., tokenizer=FOLDER), --tokenizer FOLDER",
            "no tokenizer of m is here; get that model in Settings > Models",
        ),
        ("elsewise is what elsewise does", "elsewise is what elsewise does"),
    ],
)
def test_the_window_names_its_own_places(message: str, shown: str) -> None:
    assert str(Refusal(message)) == shown
