"""The tables of docs/coming-from.md: every call of the right column runs unchanged on a tiny model."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runtime
from runtime import LanguageModel
from tests.pages import PAGES
from tests.tiny_models import tiny_path

PAGE = PAGES["docs/coming-from.md"]
SECTIONS = ("genlm-backend", "mlx-lm", "transformers", "OpenAI", "llama-cpp-python")
ROWS = [
    (section, ours)
    for section in SECTIONS
    for ours in re.findall(r"^\| `.*` \| `(.*)` \|$", PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0], re.MULTILINE)
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that the beginning of the page defines, on a tiny model."""
    tiny = str(tiny_path("llama"))
    found: dict[str, Any] = {
        "load": lambda name, **options: runtime.load({"smollm2": tiny}[name], "hf", **options),
        "load_model_by_name": lambda name, **options: runtime.load_model_by_name({"smollm2": tiny}[name], "hf", **options),
    }
    beginning = PAGE.partition("```python\n")[2].partition("```")[0]
    imported = ast.parse(beginning).body[0]
    assert isinstance(imported, ast.ImportFrom)
    found |= {name.name: getattr(runtime, name.name) for name in imported.names if name.name not in found}
    exec(beginning.partition("\n")[2], found)  # our own page
    with found["model"]:
        yield found


def test_every_section_has_a_table() -> None:
    assert {section for section, _ in ROWS} == set(SECTIONS)
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE, re.MULTILINE))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("section", "ours"), ROWS)
def test_every_call_of_the_right_column_runs(
    names: dict[str, Any], section: str, ours: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if "kv_restore" in ours:
        names["model"].kv_snapshot(names["ids"], "prompt.kv")
    code = compile(ours, f"coming-from.md, {section}", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def awaited() -> object:
        answer = eval(code, dict(names))  # our own page
        return await answer if inspect.isawaitable(answer) else answer

    asyncio.run(awaited()) if code.co_flags & inspect.CO_COROUTINE else eval(code, dict(names))


def test_every_model_member_named_on_the_page_exists() -> None:
    called = {name for _, ours in ROWS for name in re.findall(r"\bmodel\.(\w+)", ours)}
    assert {name for name in called if not hasattr(LanguageModel, name)} == set()
