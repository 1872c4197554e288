"""Tools, calls and results in templates: rendered as by transformers, also for calls parsed from a model's answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import tokenizers

from runtime.errors import InvalidRequestError
from runtime.text.chat import check_messages, render_chat_ids
from runtime.text.template import ChatTemplate
from runtime.text.tool_call_reader import parse_tool_calls
from runtime.text.tool_calls import ToolCalls
from tests.runtime.text.template_texts import TOOL_TEMPLATES
from tests.runtime.text.tokenizers_made import tokenizer_with

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TINY = tokenizer_with()
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für <Ort>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
WRITTEN = {
    "hermes": 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln \\"K\\""}}\n</tool_call>',
    "llama3": '{"name": "weather", "parameters": {"city": "Köln \\"K\\""}}',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Köln \\"K\\""}, "id": "a1b2c3d4e"}]',
}
QUESTION = {"role": "user", "content": "How is it?"}


@pytest.fixture(scope="module", params=TOOL_TEMPLATES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def template(name: str) -> Iterator[ChatTemplate]:
    made = ChatTemplate(TOOL_TEMPLATES[name], SPECIAL)
    yield made
    made.close()


def conversation(answer: ToolCalls) -> list[dict[str, Any]]:
    results = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": '{"t": 12}'} for call in answer.calls]
    return [QUESTION, answer.message(), *results]


def test_tools_calls_and_results_are_rendered_as_by_transformers(name: str, template: ChatTemplate) -> None:
    # given an answer of a model of the family
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(TINY.to_json()), **SPECIAL)
    answer = parse_tool_calls(WRITTEN[name], tools=TOOLS)
    for messages in ([QUESTION], conversation(answer)):
        for tools in (TOOLS, None):
            # when
            ids = render_chat_ids(TINY, template, messages, tools=tools)
            # then
            assert ids == theirs.apply_chat_template(
                messages, tools=tools, chat_template=TOOL_TEMPLATES[name], add_generation_prompt=True, return_dict=False
            )
            assert ("Wetter" in TINY.decode(ids)) == (tools is not None)


def test_parsed_calls_and_results_are_in_the_next_prompt(name: str, template: ChatTemplate) -> None:
    text = TINY.decode(render_chat_ids(TINY, template, conversation(parse_tool_calls(WRITTEN[name])), tools=TOOLS))
    again = parse_tool_calls(text[text.index("How is it?") :], "hermes" if name == "hermes" else "auto").calls
    if name != "llama3":  # there a call must be the whole answer
        assert [(call.name, call.arguments) for call in again] == [("weather", {"city": 'Köln "K"'})]
    assert '{"city": "Köln \\"K\\""}' in text
    assert '{"t": 12}' in text


def test_call_arguments_as_json_text_equal_an_object(template: ChatTemplate) -> None:
    def asked(arguments: Any) -> list[dict[str, Any]]:
        call = {"type": "function", "id": "a1b2c3d4e", "function": {"name": "weather", "arguments": arguments}}
        return [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]

    arguments = {"city": "Rom", "days": [1, 2]}
    assert check_messages(asked(json.dumps(arguments))) == check_messages(asked(arguments))
    assert render_chat_ids(TINY, template, asked(json.dumps(arguments))) == render_chat_ids(TINY, template, asked(arguments))


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ("weather", "message 2: tool_calls is a list, not a str"),
        (["weather"], "message 2: a tool call is"),
        ([{"function": {"arguments": {}}}], "message 2: a tool call is"),
        ([{"function": {"name": "f", "arguments": "{"}}], "message 2: the arguments of f are no JSON"),
        ([{"function": {"name": "f", "arguments": "[" * 100_000}}], "message 2: the arguments of f are no JSON"),
    ],
)
def test_malformed_tool_calls_are_refused(calls: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        check_messages([QUESTION, {"role": "assistant", "content": None, "tool_calls": calls}])


def test_invalid_tools_are_refused_before_rendering(template: ChatTemplate) -> None:
    with pytest.raises(InvalidRequestError, match="tool 1 has no name"):
        render_chat_ids(TINY, template, [QUESTION], tools=[{"type": "function"}])
