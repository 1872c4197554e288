"""The places of the window that replace the commands named in messages of the library and the store."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT
from ui import Refusal, in_window

NAMED = re.compile(
    r"elsewise (ask|models|sessions|doctor|serve) (--)?\w|\b(make setup|pip install)\b|\bset \W?[A-Z]+_[A-Z]+"
    r"|(?<=[ (`])--(?!max-logprobs|merge)[a-z]+(-[a-z]+)* ?[A-Z`),]"
)  # a command, a variable to set, an option; those of other programs are not replaced


def sentences(path: Path) -> Iterator[str]:
    """The strings of a source file; each gap of an f-string is filled with a name."""
    tree = ast.parse(path.read_text("utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "org/name" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def test_no_message_that_the_window_may_show_names_a_command() -> None:
    paths = [path for folder in ("runtime", "storage", "app/workbench") for path in (ROOT / folder).rglob("*.py")]
    naming = [path for path in paths if NAMED.search(path.read_text("utf-8"))]
    found = [words for path in naming for words in sentences(path) if NAMED.search(words)]
    assert len(found) > 30
    assert [words for words in found if NAMED.search(in_window(f"not here {words}"))] == []


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("the file is damaged; `elsewise sessions verify` says where", "the file is damaged; Settings > Data says where"),
        ("fetch it again: `elsewise models fetch org/name@0a1b`", "fetch it again: Settings > Models"),
        ("import it first: `elsewise models import /a b/c.gguf`; or not", "import it first: Settings > Models; or not"),
        (
            "it refuses (HTTP 401); log in (or set `HF_TOKEN` to one that may); or search",
            "it refuses (HTTP 401); log in; or search",
        ),
        ("not there (7 bytes are kept; `elsewise models fetch a/b` goes on)", "not there"),
        ("no tokenizer is here (`connect(..., tokenizer=FOLDER)`, `--tokenizer FOLDER`)", "no tokenizer is here"),
        ("torch not installed (`make setup`, or `pip install torch`)", "torch not installed"),
        ("leave `speculative` out (or take another model)", "leave `speculative` out (or take another model)"),
        ("elsewise is what elsewise does", "elsewise is what elsewise does"),
        (
            "7 bytes are more than 5: raise kv_cache_bytes (`set_kv_budget`) or shorten the text",
            "7 bytes are more than 5: raise KV in memory (Settings > Memory) or shorten the text",
        ),
        ("mlx-lm does not follow it; use backend='hf'", "mlx-lm does not follow it; use the engine hf"),
        ("offload='disk' needs it: choose device='cpu'", "weights on disk needs it: choose the device cpu"),
        ("context_length=9,000, but the model has 7", "a context of 9,000, but the model has 7"),
        ("top_p must be a number above 0 and at most 1, not 3", "“top-p” must be a number above 0 and at most 1, not 3"),
        ("max_tokens must be a whole number, 1 or more", "“longest answer” must be a whole number, 1 or more"),
        ("logit_bias of token 3 is too large", "“bias” of token 3 is too large"),
        ("unknown option 'top_p' in /a/top_p.json", "unknown option 'top_p' in /a/top_p.json"),
    ],
)
def test_commands_in_messages_are_replaced_by_places_of_the_window(message: str, shown: str) -> None:
    assert str(Refusal(message)) == in_window(message) == shown
