"""Calls in answers: the forms of the families, malformed ones, hostile ones, and the same while they stream."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import InvalidRequestError, ToolCallError, ToolCallReader, parse_tool_calls
from runtime.text.tool_calls import CallFormat, ToolCall

WEATHER = {"name": "weather", "arguments": {"city": "Rom", "days": 2}}
HERMES = f"<tool_call>\n{json.dumps(WEATHER)}\n</tool_call>"
LLAMA = '{"name": "weather", "parameters": {"city": "Rom", "days": 2}}'
MISTRAL = f"[TOOL_CALLS] [{json.dumps({**WEATHER, 'id': 'abcdefghi'})}]"
MISTRAL_NAMED = '[TOOL_CALLS]weather[ARGS]{"city": "Rom", "days": 2}'
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}},
    {"type": "function", "function": {"name": "clock"}},
]


@pytest.mark.parametrize(
    ("form", "text"), [("hermes", HERMES), ("llama3", LLAMA), ("mistral", MISTRAL), ("mistral", MISTRAL_NAMED)]
)
def test_each_form_is_read_by_its_name_and_by_itself(form: CallFormat, text: str) -> None:
    for chosen in (form, "auto"):
        found = parse_tool_calls(text, chosen)
        assert found.text == ""
        assert [(call.name, call.arguments) for call in found.calls] == [("weather", {"city": "Rom", "days": 2})]


@pytest.mark.parametrize(
    ("text", "outside", "names"),
    [
        ("", "", []),
        ("Only words, 1 < 2 and <tool> too.", "Only words, 1 < 2 and <tool> too.", []),
        (f"Let me look.\n{HERMES}\n{HERMES}\nWait.", "Let me look.\n\n\nWait.", ["weather", "weather"]),
        (f"{LLAMA}; {LLAMA} done", " done", ["weather", "weather"]),
        (f"<|python_tag|>{LLAMA}", "", ["weather"]),
        (f"Hm. <|python_tag|>{LLAMA};{LLAMA}", "Hm. ", ["weather", "weather"]),
        ('[TOOL_CALLS] [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]', "", ["a", "b"]),
        ('So: [TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[CALL_ID]c12345678[ARGS]{"x": "[TOOL_CALLS]"}', "So: ", ["a", "b"]),
        ('<tool_call>{"name": "say", "arguments": {"text": "</tool_call> {\\"} \\\\"}}</tool_call>', "", ["say"]),
        ('{"answer": 42}', '{"answer": 42}', []),
        ('{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
        ('{"name": ', '{"name": ', []),
        ("a trailing <tool_", "a trailing <tool_", []),
        ('<tool_call>{"type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}</tool_call>', "", ["f"]),
    ],
)
def test_text_is_kept_and_calls_are_taken_out(text: str, outside: str, names: list[str]) -> None:
    found = parse_tool_calls(text)
    assert found.text == outside
    assert [call.name for call in found.calls] == names


def test_ids_are_the_models_own_or_nine_digits_that_differ() -> None:
    assert parse_tool_calls(MISTRAL).calls[0].id == "abcdefghi"
    assert parse_tool_calls("[TOOL_CALLS]f[CALL_ID]c12345678[ARGS]{}").calls[0].id == "c12345678"
    made = [call.id for call in parse_tool_calls(HERMES * 2).calls]
    assert made == [call.id for call in parse_tool_calls(HERMES * 2).calls]
    assert len(set(made)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in made)


@pytest.mark.parametrize(
    ("text", "form", "says"),
    [
        ("<tool_call>", "auto", "tool call 1: the answer ends before the call does"),
        (HERMES + '<tool_call>{"name": "weather", "argu', "auto", "tool call 2: the answer ends before the call does"),
        ('<tool_call>{"name": "f", "arguments": {}}', "auto", "ends before"),
        ('<tool_call>{"name": "f", "arguments": {}} and', "auto", "</tool_call> must follow its JSON, not 'and'"),
        ("<tool_call>weather(city='Rom')</tool_call>", "auto", "a JSON object must follow"),
        ("<tool_call>{'name': 'f'}</tool_call>", "auto", "no JSON: Expecting property name"),
        ('<tool_call>{"name": "f"}</tool_call>', "auto", "f has no arguments"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "auto", "arguments that are a list"),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', "auto", "no JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "auto", "it has no name"),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', "auto", "it has no name"),
        ('<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>', "auto", "'name' stands twice"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "auto", "'a' stands twice"),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "auto", "NaN is no JSON number"),
        ('<tool_call>{"name": "f", "arguments": {"a": -Infinity}}</tool_call>', "auto", "-Infinity is no JSON number"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "auto", "1e999 is too large"),
        (f'<tool_call>{{"name": "f", "arguments": {{"a": {"9" * 5000}}}}}</tool_call>', "auto", "no JSON that can be read"),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "auto", "lone surrogate"),
        ('[TOOL_CALLS] ["f"]', "auto", "a call is an object"),
        ("[TOOL_CALLS] Sorry, I cannot {", "auto", "neither a JSON list nor a name"),
        ("[TOOL_CALLS]" + "x" * 600, "auto", "neither a JSON list nor a name"),
        ('{"name": "f", "parameters": {"a": ', "auto", "ends before"),
        ('{"answer": 42}', "llama3", "it has no name"),
        ("<|python_tag|>search.call(query='x')", "auto", "a JSON object must follow"),
    ],
)
def test_a_malformed_call_is_named_and_quoted(text: str, form: CallFormat, says: str) -> None:
    with pytest.raises(ToolCallError) as raised:
        parse_tool_calls(text, form)
    assert says in str(raised.value)
    assert "the model wrote" in str(raised.value)
    assert len(str(raised.value)) < 1000


HOSTILE = {
    "deep objects": '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 10_000 + "1" + "}" * 10_001 + "</tool_call>",
    "deep arrays": "[TOOL_CALLS] " + "[" * 10_000 + "]" * 10_000,
    "deep bare": '{"name": "f", "parameters": ' + "[" * 10_000,
    "deep in a text": '<tool_call>{"name": "f", "arguments": "' + '{\\"a\\":' * 10_000 + '"}</tool_call>',
    "a megabyte": '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 1_000_000 + '"}}</tool_call>',
    "a megabyte of quotes": '<tool_call>{"a' + '\\"' * 500_000,
    "a megabyte of space": "{" + " " * 1_000_000,
    "a megabyte of names": '{"name": "' + "x" * 1_000_000,
    "a megabyte of openings": "<tool_call>" * 90_000,
    "a megabyte of closings": "</tool_call>" * 90_000,
    "a megabyte of half openings": "<tool_cal" * 110_000,
    "many names": '<tool_call>{"name": "f", "arguments": {' + '"a": 1, ' * 20_000 + '"b": 1}}</tool_call>',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("step", [None, 1009, pytest.param(7, marks=pytest.mark.slow)])
def test_hostile_answers_end_in_a_typed_error_or_as_text(name: str, step: int | None) -> None:
    text = HOSTILE[name]
    before = time.process_time()
    reader, seen = ToolCallReader(), ""
    try:
        for at in range(0, len(text), step or len(text)):
            seen += reader.feed(text[at : at + (step or len(text))]).text
        seen += reader.finish().text
    except ToolCallError as error:
        said = str(error)
    else:
        said = "" if seen == text else "x" * 1000
    assert len(said) < 1000
    assert time.process_time() - before < 60  # it took 0.3 s; what is quadratic here takes minutes


@pytest.mark.parametrize(
    "text", ["Hi " + HERMES + "\n" + HERMES + " <tool", f"{LLAMA};{LLAMA} ok", f" {MISTRAL}{MISTRAL_NAMED}x"]
)
def test_piece_by_piece_it_is_the_same_as_at_once(text: str) -> None:
    # given
    whole = parse_tool_calls(text)
    for seed in range(20):
        pieces, at, rng = [], 0, random.Random(seed)
        while at < len(text):
            n = rng.randint(1, 9)
            pieces.append(text[at : at + n])
            at += n
        # when
        reader = ToolCallReader()
        seen = [*(reader.feed(piece) for piece in pieces), reader.finish()]
        # then
        assert "".join(part.text for part in seen) == whole.text
        assert tuple(call for part in seen for call in part.calls) == whole.calls


def test_while_it_streams_a_call_shows_when_it_is_complete_and_text_at_once() -> None:
    reader = ToolCallReader(tools=TOOLS)
    assert reader.feed("Let me see. <tool").text == "Let me see. "
    for char in '_call>{"name": "clock", "arguments": {}}</tool_call':
        assert reader.feed(char) == parse_tool_calls("")
    assert [call.name for call in reader.feed("> So").calls] == ["clock"]
    with pytest.raises(ToolCallError, match="tool call 2: there is no tool 'wether': did you mean 'weather'"):
        reader.feed('<tool_call>{"name": "wether", "arguments": {}}</tool_call>')
    with pytest.raises(ToolCallError, match="tool call 2: there is no tool 'wether'"):
        reader.feed("and on")


def test_calls_are_compared_with_the_definitions_that_were_offered() -> None:
    assert parse_tool_calls(HERMES, tools=TOOLS).calls[0].name == "weather"
    assert parse_tool_calls(LLAMA, tools=[{"name": "weather"}]).calls[0].name == "weather"
    with pytest.raises(ToolCallError, match=r"weather needs city \(given: days\)"):
        parse_tool_calls('[TOOL_CALLS]weather{"days": 2}', tools=TOOLS)
    with pytest.raises(ToolCallError, match="there is no tool 'weather'"):
        parse_tool_calls(HERMES, tools=[])


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("weather", "a list of definitions"),
        ([{"function": {}}], "tool 1 has no name"),
        ([TOOLS[0], "x"], "tool 2 has no name"),
        ([{"name": "f", "parameters": [1]}], r"tool 1 \(f\): parameters is a JSON schema"),
        ([{"name": "f", "parameters": {"required": "a"}}], "required a list"),
        ([{"name": "f"}, {"name": "f"}], "tool 2: another one is called 'f'"),
    ],
)
def test_bad_definitions_are_refused(tools: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        parse_tool_calls("text", tools=tools)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'hermes'"):
        parse_tool_calls("text", "herms")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(InvalidRequestError, match="an answer is a text, not bytes"):
        parse_tool_calls(b"text")  # type: ignore[arg-type]  # the mistake under test


@given(st.text(alphabet='<tool_call>/{}[]"name: \\,;TOL_CAS|python_tag', max_size=200))
def test_any_text_is_text_or_a_typed_error(text: str) -> None:
    try:
        found = parse_tool_calls(text)
    except ToolCallError:
        return
    assert found.calls or found.text == text


def test_an_answer_goes_back_as_a_message() -> None:
    message = parse_tool_calls("Look: " + MISTRAL).message()
    function = {"name": "weather", "arguments": {"city": "Rom", "days": 2}}
    called = [{"type": "function", "id": "abcdefghi", "function": function}]
    assert message == {"role": "assistant", "content": "Look: ", "tool_calls": called}
    assert parse_tool_calls("No.").message() == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (f"Let me look.\n{HERMES}\n{HERMES} Wait.", [HERMES, HERMES]),
        (f"{LLAMA}; {LLAMA} done", [LLAMA, LLAMA]),
        (f"Hm. <|python_tag|>{LLAMA}", [f"<|python_tag|>{LLAMA}"]),
        (f"Hm. {MISTRAL_NAMED} so", [MISTRAL_NAMED]),
        (f"  {MISTRAL}", [MISTRAL]),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_says_where_it_stands_also_while_it_comes(text: str, written: list[str], size: int) -> None:
    reader, calls = ToolCallReader(), list[ToolCall]()
    for at in range(0, len(text), size):
        calls += reader.feed(text[at : at + size]).calls
    calls += reader.finish().calls
    assert [text[slice(*call.span)] for call in calls] == written
