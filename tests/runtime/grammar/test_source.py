"""`Grammar`: how one is constructed, and which sources are refused before any compute."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from runtime import GenerationOptions, Grammar, GrammarError, InvalidRequestError
from runtime.grammar import trial
from runtime.grammar.source import MAX_CHARACTERS
from runtime.transport.messages import encode
from runtime.transport.methods import METHODS
from tests.runtime.grammar.samples import ALL, SCHEMA, Parcel


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_a_schema_may_be_a_dictionary_text_or_a_pydantic_class() -> None:
    assert Grammar.json_schema(SCHEMA) == Grammar.json_schema(json.dumps(SCHEMA, ensure_ascii=False))
    assert json.loads(Grammar.json_schema(Parcel).source) == Parcel.model_json_schema()
    for grammar in (*ALL.values(), Grammar.json_schema(Parcel)):
        assert grammar.check() is grammar


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[1]", "a dictionary, its JSON text or a pydantic class"),
        ("true", "a dictionary"),
        (3, "a dictionary"),
        (int, "int is no pydantic class"),
        ({"enum": {1, 2}}, "holds what JSON cannot: Object of type set"),
        ({"minimum": float("nan")}, "Out of range float"),
        ({"const": "\ud800"}, "half of a character"),
        ("[" * 100_000, "nested too deeply"),
        (nested(2000), "nested too deeply to be read: move its inner parts"),
    ],
)
def test_an_invalid_schema_is_refused_at_once(given: object, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        Grammar.json_schema(given)  # type: ignore[arg-type]  # that is the point


def test_a_source_must_be_text_of_limited_length() -> None:
    with pytest.raises(GrammarError, match="is a text, not 3"):
        Grammar.regex(3)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(GrammarError, match=r"the regex has 8,193 characters; at most 8,192"):
        Grammar.regex("a" * (MAX_CHARACTERS["regex"] + 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar("json_schema", '{"type": "nope"}'), "Invalid type: nope"),
        (Grammar("json_schema", "true"), "is an object, not 'true'"),
        (Grammar("json_schema", "{"), "is not JSON"),
        (Grammar("json_schema", '{"a":' * 20_000), "nested too deeply to be read: move its inner parts"),
        (Grammar.json_schema(nested(200)), "nested too deeply to be read: move its inner parts"),
        (Grammar("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}'), r"minimum \(3\) is greater than maximum"),
        (Grammar("json_schema", '{"$ref": "file:///etc/passwd"}'), "does not fetch resources"),
        (Grammar("json_schema", '{"type":"object","properties":{"a":{"$ref":"#/$defs/no"}}}'), "no"),
        (Grammar("regex", "("), "unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("lark", "a: /b/"), "no start rule found"),
        (Grammar("regex", r"[^\s\S]"), "allows nothing"),
        (Grammar("lark", "start: start"), "allows nothing"),
        (Grammar("bnf", "x"), "one of json_schema, regex, lark, not 'bnf'"),  # type: ignore[arg-type]  # the point
    ],
)
def test_a_grammar_refused_by_llguidance_is_refused_with_its_message(grammar: Grammar, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        grammar.check()


def test_rules_nested_too_deeply_crash_the_trial_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a stack too small for the rules
    monkeypatch.setattr(trial, "CHILD_STACK", 1 << 20)
    chain = "start:a0\n" + "\n".join(f"a{i}:a{i + 1}" for i in range(1300)) + '\na1300:"x"'
    with pytest.raises(GrammarError, match="nested too deeply"):
        Grammar.lark(chain).check()
    # then with the normal stack they compile
    monkeypatch.undo()
    Grammar.lark(chain + "\n").check()


@pytest.mark.slow
def test_a_grammar_that_compiles_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CPU_SECONDS", 1)
    with pytest.raises(GrammarError, match="more than 1 s of computing"):
        Grammar.json_schema({"type": "integer", "multipleOf": 9_999_991}).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"items":' * 300 + "{}" + "}" * 300),
        Grammar.regex("(" * 4000 + "a" + ")" * 4000),
        Grammar.lark("start: " + "(" * 7000 + '"a"' + ")" * 7000),
        Grammar.lark("start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(30)) + '\nR30: "a"'),
        Grammar.json_schema({"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}b.*"} for i in range(20)]}),
    ],
)
def test_hostile_grammars_are_refused(grammar: Grammar) -> None:
    with pytest.raises(GrammarError):
        grammar.check()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"grammar": {"type": "object"}}, GrammarError, r"made by Grammar\.json_schema"),
        ({"grammar": "a+"}, GrammarError, r"made by Grammar"),
        ({"grammar": ALL["regex"], "ignore_eos": True}, GrammarError, "ignore_eos contradicts a grammar"),
        ({"grammar_prefix": 3}, InvalidRequestError, "without a grammar"),
        ({"grammar": ALL["regex"], "grammar_prefix": -1}, InvalidRequestError, "a whole number, 0 or more"),
        ({"grammar": ALL["regex"], "grammar_prefix": True}, InvalidRequestError, "a whole number, 0 or more"),
    ],
)
def test_options_that_contradict_a_grammar_are_refused(options: dict[str, object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        GenerationOptions(**options).check()  # type: ignore[arg-type]  # by name


def test_a_grammar_crosses_the_pipe_unchanged() -> None:
    for grammar in ALL.values():
        options = GenerationOptions(grammar=grammar, grammar_prefix=0)
        sent = msgspec.Raw(encode({"ids": np.array([1], np.int32), "options": options}))
        assert METHODS["generate"].read_arguments(sent)["options"] == options


@pytest.mark.slow
def test_creating_a_grammar_imports_neither_llguidance_nor_torch() -> None:
    code = (
        "import sys, runtime; runtime.GenerationOptions(grammar=runtime.Grammar.regex('a')).check(); runtime.load;"
        "assert 'llguidance' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
