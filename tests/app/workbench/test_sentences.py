"""Sentences of the use cases go through the window's translators, although the use cases do not import Qt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import app.workbench
from app.faults import not_loaded
from app.workbench.answers.provenance_text import how_made
from app.workbench.tree.session import UNTITLED, OpenSession, shown_title
from app.workbench.tree.tree import PathSegment
from app.workbench.tree.turn_notes import DAMAGED, note_of
from runtime import ModelMissingError
from storage import NodeRow, SessionRow, SessionTree
from tests.app.workbench.trees import chat, node
from ui import Refusal, translate, translate_with

MARK = "«"


@pytest.fixture
def marks() -> Iterator[None]:
    translate_with(lambda context, text: f"{MARK}{context}: {text}")
    yield
    translate_with(lambda _, text: text)


def opened(nodes: list[NodeRow]) -> OpenSession:
    row = SessionRow(1, "", 0.0, 0.0, pinned=False, is_sample=False, current_node=None, branches=1)
    return OpenSession(SessionTree(row, tuple(nodes)))


@pytest.mark.usefixtures("marks")
def test_refusals_reasons_and_notes_are_translated_before_they_are_filled_in() -> None:
    tree = chat(node(4, 3, "user"))
    with pytest.raises(Refusal, match=f"^{MARK}Workbench: turn"):
        opened([damaged := replace(node(1, None, "user"), damaged=True)]).check_sound([PathSegment(damaged, None)])
    assert not_loaded(ModelMissingError("", "{0}")) == f"{MARK}Workbench: {{0}} is not on this computer"
    assert note_of(tree, tree.nodes[3], damaged=True, recorded=False) == f"{MARK}Workbench: {DAMAGED}"


@pytest.mark.usefixtures("marks")
def test_stored_words_are_translated_where_they_are_shown() -> None:
    made = {"options": {"max_tokens": 8, "stop": []}, "sources": {"session and format": ["stop"]}, "model": "tiny"}
    stats = {"made": made, "generated": 1, "repeated": {"parts_at": 2}}
    told = how_made(replace(node(4, 3, "assistant"), stats=stats, finish_reason="length"))
    assert told is not None
    assert all(name.startswith(MARK) for name in told.facts)
    assert told.facts[f"{MARK}Workbench: ended by"] == f"{MARK}Workbench: the length limit"
    assert told.facts[f"{MARK}Workbench: repeats"] == f"{MARK}Workbench: differs from the original from token 3 on"
    assert [setting.source for setting in told.settings] == [
        f"{MARK}Workbench: {MARK}Workbench: session and {MARK}Workbench: format",
        f"{MARK}Workbench: default",
    ]
    # a session without a title is stored under one name, whatever the language
    assert shown_title(UNTITLED) == f"{MARK}Workbench: {UNTITLED}"
    assert shown_title("Rain") == "Rain"


def test_without_a_window_sentences_are_not_translated() -> None:
    assert translate("Workbench", "a {0} sentence") == "a {0} sentence"


def test_every_refusal_goes_through_the_translators() -> None:
    """Messages of errors of the library or the store are passed on unchanged; every sentence of our own is translated."""
    past = [
        f"{file.name}:{call.lineno}"
        for file in sorted(Path(app.workbench.__file__).parent.rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.endswith("Refusal")
        for given in call.args
        if isinstance(given, ast.Constant) or (isinstance(given, ast.JoinedStr) and _has_words(given))
    ]
    assert past == []


def _has_words(text: ast.JoinedStr) -> bool:
    return any(isinstance(part, ast.Constant) and any(map(str.isalpha, str(part.value))) for part in text.values)
