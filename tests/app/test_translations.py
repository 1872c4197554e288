"""Every sentence of the window goes through its translators, and Qt's lupdate finds every one of them."""

from __future__ import annotations

import ast
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import PySide6

import app.workbench
import ui
from app.workbench.models.views import GOOD_FOR
from runtime.sampling import stages
from runtime.shelf.catalogue import catalogue

WORKBENCH = Path(app.workbench.__file__).parent
APP, UI = WORKBENCH.parent, Path(ui.__file__).parent
STAGES = Path(stages.__file__).parent  # the sampler's, whose names and hints the window shows
SHOWN = [WORKBENCH, APP / "faults.py", APP / "supervisor.py", UI]  # the source of the window's texts
NO_WORDS = [
    UI / "theme" / "style.py",
    UI / "theme" / "fonts.py",
    UI / "transcript" / "read_mode" / "markup.py",
    UI / "transcript" / "read_mode" / "document.py",
]
TRANSLATES = {"tr", "translate", "QT_TRANSLATE_NOOP"}
LOGS = {"debug", "info", "warning", "error", "exception"}
KEYED, NAMED = {"latest", "drop"}, {"start", "_later"}  # a task by its key, or by its name
NOT_SHOWN = {  # texts with a space that the window does not show
    r" \(copy(?: \d+)?\)$", "module 'ui' has no attribute ", "the strip has no token ",
    "\n[end of ", " MB · ", " · p ", "u = ", "org/name, org/name@revision", "tuple[float, int]", " of session ",
    "look up", "cache check", "score draft", "comparison menu", "search the hub",  # names of tasks
    "(yes|no)(, because [^.]+)?\\.", 'start: "Answer: " NUMBER\nNUMBER: /[0-9]+/',  # examples of forms and of tools
}  # fmt: skip


def parsed(*more: Path) -> Iterator[tuple[str, ast.Module]]:
    """Every file with sentences of the window, including those in other folders."""
    for place in (*SHOWN, *more):
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if file not in NO_WORDS:
                yield str(file.relative_to(APP.parent)), ast.parse(file.read_text("utf-8"))


def name_of(call: ast.Call) -> str:
    """The name of the called function, without its object."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def unshown(tree: ast.AST) -> Iterator[ast.AST]:
    """Strings that are translated or never shown: docstrings, assertions, the log, names of tasks."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant() as doc):
                yield doc
            case ast.Assert():
                yield from ast.walk(node)
            case ast.Call() if name_of(node) in TRANSLATES | LOGS:
                yield from ast.walk(node)
            case ast.Call(args=[first, *_]) if name_of(node) in KEYED:
                yield first
            case ast.Call(args=[_, last]) if name_of(node) in NAMED:
                yield from ast.walk(last)
            case ast.keyword(arg="name" | "key", value=value):
                yield from ast.walk(value)


def sentences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of untranslated strings that might be shown: two words or more, also in f-strings."""
    kept = set(unshown(tree))
    for node in ast.walk(tree):
        if node in kept:
            continue
        match node:
            case ast.Constant(value=str(text)):
                if (
                    " " in text.strip()
                    and any(map(str.isalpha, text))
                    and text not in NOT_SHOWN
                    and not text.startswith(("{", "[{"))
                ):
                    yield node.lineno, text
            case ast.JoinedStr(values=parts):
                words = [str(part.value).strip() for part in parts if isinstance(part, ast.Constant)]
                if sum(len(word) > 1 and word.isalpha() for word in words) > 1:
                    yield node.lineno, " {} ".join(words)


def wanted(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str, int]]:
    """Context, text and line of each translated string, as Qt looks it up at run time."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and name_of(node) in TRANSLATES:
            match node.args:
                case [ast.Constant(value=str(text))]:
                    yield owner, text, node.lineno
                case [ast.Constant(value=str(context)), ast.Constant(value=str(text))]:
                    yield context, text, node.lineno
        yield from wanted(node, node.name if isinstance(node, ast.ClassDef) else owner)


def test_every_sentence_goes_through_the_translators() -> None:
    past = [f"{file}:{line}: {text!r}" for file, tree in parsed() for line, text in sentences(tree)]
    assert past == []


def test_lupdate_finds_every_text_in_the_context_of_its_lookup(tmp_path: Path) -> None:
    # given
    lupdate, found_in = Path(PySide6.__file__).parent / "lupdate", tmp_path / "elsewise.ts"
    # when
    sources = [str(file) for root in (APP, UI, STAGES) for file in sorted(root.rglob("*.py"))]
    subprocess.run([lupdate, *sources, "-ts", found_in], check=True, capture_output=True)
    # then
    found = {
        (context.findtext("name"), text.text)
        for context in ElementTree.parse(found_in).iter("context")
        for text in context.iter("source")
    }
    asked = [(file, one) for file, tree in parsed(STAGES) for one in wanted(tree)]
    missed = [f"{file}:{line}: {context}: {text}" for file, (context, text, line) in asked if (context, text) not in found]
    assert missed == []
    assert len(asked) > 600


def test_descriptions_of_the_catalogue_can_be_translated() -> None:
    assert {model.good_for for model in catalogue()} == set(GOOD_FOR)
