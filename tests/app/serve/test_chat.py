"""/v1/chat/completions, /v1/embeddings, /tokenize and /detokenize."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from app.serve.answer_text import AnswerReader, Delta
from runtime import GenerationOptions
from tests.app.serve.conftest import CALL, TOOLS, Served

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
EXACT = 1e-5  # nats


def exactly(text: str) -> dict[str, Any]:
    """Options that force the answer to be this text."""
    return {"structured_outputs": {"choice": [text]}, "max_tokens": 200}


def test_a_conversation_gets_the_answer_of_the_library(served: Served) -> None:
    ids = served.model.render_chat(HELLO)
    drawn = list(served.model.generate_sync(ids, GenerationOptions(max_tokens=7, seed=5)))
    answer = served.post(PATH, messages=HELLO, max_tokens=7, seed=5, return_token_ids=True, logprobs=True, top_logprobs=2)
    (choice,) = answer["choices"]
    assert (answer["object"], choice["message"]["role"], choice["finish_reason"]) == ("chat.completion", "assistant", "length")
    assert choice["message"]["content"] == "".join(record.text for record in drawn)
    assert (answer["prompt_token_ids"], choice["token_ids"]) == (ids, [record.token_id for record in drawn])
    for record, entry in zip(drawn, choice["logprobs"]["content"], strict=True):
        assert entry["logprob"] == pytest.approx(record.logprob, abs=EXACT)
        assert bytes(entry["bytes"]) == record.token_bytes
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(record.top_logprobs[:2], abs=EXACT)
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_the_default_length_of_an_answer_is_limited_by_its_log_probabilities(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.serve.generation.MOST_ENTRIES", 60)
    answer = served.post(PATH, messages=HELLO, n=2, logprobs=True, top_logprobs=3, ignore_eos=True)
    assert [len(choice["logprobs"]["content"]) for choice in answer["choices"]] == [10, 10]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    refused = served.client.post(PATH, json={"messages": HELLO, "max_tokens": 21, "logprobs": True, "top_logprobs": 3})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        [{"role": "developer", "content": "Be kind."}, *HELLO],
        [*HELLO, {"role": "assistant", "content": "Hi", "reasoning_content": "x"}, *HELLO],
    ],
)
def test_messages_are_accepted_in_openais_forms(served: Served, messages: list[dict[str, Any]]) -> None:
    plain = [
        {
            "role": m["role"].replace("developer", "system"),
            "content": m["content"] if isinstance(m["content"], str) else "Hello",
        }
        for m in messages
    ]
    answer = served.post(PATH, messages=messages, max_completion_tokens=1, return_token_ids=True)
    assert answer["prompt_token_ids"] == served.model.render_chat(plain)


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": -1}])
def test_a_stream_adds_up_to_the_whole_answer(served: Served, extra: dict[str, Any]) -> None:
    body = {"messages": HELLO, "max_tokens": 8, "seed": 1, "return_token_ids": True, **extra}
    whole = served.post(PATH, **body)
    chunks = served.stream(PATH, stream_options={"include_usage": True}, **body)
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        pieces = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert [piece["delta"].get("role") for piece in pieces] == ["assistant", *[None] * (len(pieces) - 1)]
        assert "".join(piece["delta"].get("content", "") for piece in pieces) == choice["message"]["content"]
        assert [token for piece in pieces for token in piece.get("token_ids", [])] == choice["token_ids"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"]:
            streamed = [entry for piece in pieces for entry in piece["logprobs"]["content"]]
            assert [entry["token"] for entry in streamed] == [entry["token"] for entry in choice["logprobs"]["content"]]
            assert len(streamed[0]["top_logprobs"]) == served.model.info.vocab_size


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_separated_from_the_answer(served: Served, stream: bool) -> None:
    body = {"messages": HELLO, **exactly("<think>\nhm, yes</think>\n\nYes.")}
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in served.stream(PATH, **body)]
        told = {name: "".join(delta.get(name) or "" for delta in deltas) for name in ("content", "reasoning")}
    else:
        told = served.post(PATH, **body)["choices"][0]["message"]
        assert told["reasoning_content"] == told["reasoning"]
    assert (told["content"], told["reasoning"]) == ("Yes.", "hm, yes")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_is_returned_as_structured_data(tooled: Served, stream: bool) -> None:
    body = {"messages": HELLO, "tools": TOOLS, **exactly(f"So: {CALL}")}
    if stream:
        choices = [chunk["choices"][0] for chunk in tooled.stream(PATH, **body)]
        (call,) = [each for choice in choices for each in choice["delta"].get("tool_calls", [])]
        content = "".join(choice["delta"].get("content", "") for choice in choices)
        finish = choices[-1]["finish_reason"]
        assert call["index"] == 0
    else:
        (choice,) = tooled.post(PATH, **body)["choices"]
        content, (call,), finish = choice["message"]["content"], choice["message"]["tool_calls"], choice["finish_reason"]
    assert (content, finish) == ("So: ", "tool_calls")
    assert (call["type"], call["function"]["name"]) == ("function", "double")
    assert json.loads(call["function"]["arguments"]) == {"x": 21}
    answered = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [{k: v for k, v in call.items() if k != "index"}]},
        {"role": "tool", "tool_call_id": call["id"], "content": "42"},
    ]
    assert tooled.post(PATH, messages=answered, tools=TOOLS, max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "double"}}])
def test_a_tool_call_can_be_required(tooled: Served, stream: bool, choice: Any) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": choice, "max_tokens": 300, "seed": 1}
    body["logit_bias"] = {str(token): 50.0 for token in tooled.model.tokenize("}") + tooled.model.tokenize("7")}
    if stream:
        choices = [chunk["choices"][0] for chunk in tooled.stream(PATH, **body)]
        (call,) = [each for each_choice in choices for each in each_choice["delta"].get("tool_calls", [])]
    else:
        (call,) = tooled.post(PATH, **body)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "double"
    assert set(json.loads(call["function"]["arguments"])) == {"x"}


@pytest.mark.slow
def test_a_call_that_cannot_be_parsed_stays_text(tooled: Served) -> None:
    text = 'Well <tool_call>{"name": 5}</tool_call> then'
    (choice,) = tooled.post(PATH, messages=HELLO, tools=TOOLS, **exactly(text))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in choice["message"]
    hidden = tooled.post(PATH, messages=HELLO, tools=TOOLS, tool_choice="none", **exactly(CALL))["choices"][0]
    assert hidden["message"]["content"] == CALL


@pytest.mark.parametrize("size", [1, 4, 9, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('a <tool_call>{"name": "f", "arguments": {}}</tool_call> b <tool_call>{"na', 'a  b <tool_call>{"na', 1),
        ('a <tool b <tool_call>{"name": 5}</tool_call> c', 'a <tool b <tool_call>{"name": 5}</tool_call> c', 0),
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": 5}] c',
            '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": 5}] c',
            0,
        ),
    ],
)
def test_an_unparsable_call_stays_text_for_every_size_of_chunks(text: str, content: str, calls: int, size: int) -> None:
    reader = AnswerReader([{"name": "f"}], thinking=False, forced=False)
    deltas = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)] + [reader.finish(whole=False)]
    assert "".join(delta.content for delta in deltas) == content
    assert len([call for delta in deltas for call in delta.calls]) == calls


@pytest.mark.slow
def test_an_answer_with_a_form_has_no_reasoning(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a template that opens the reasoning
    monkeypatch.setattr(served.model, "detokenize", lambda _ids: "<think>\n")
    body = {"messages": HELLO, "max_tokens": 200}
    schema = {"const": {"a": 1}, "description": "what stands after </think>"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for extra in ({"response_format": form}, exactly('{"a": 1}')):
        message = served.post(PATH, **{**body, **extra})["choices"][0]["message"]
        assert json.loads(message["content"]) == {"a": 1}
        assert not message.get("reasoning")
    assert served.post(PATH, **body)["choices"][0]["message"]["reasoning"]


@pytest.mark.slow
def test_the_parameters_of_a_required_call_may_contain_references(tooled: Served) -> None:
    item = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
    schema = {
        "type": "object",
        "properties": {"first": {"$ref": "#/$defs/Item"}, "default": {"$ref": "#/$defs/Item"}},
        "required": ["first", "default"],
        "additionalProperties": False,
        "$defs": {"Item": item},
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("f", "g")]
    own = {**schema, "$id": "https://example.org/f"}  # an `$id` of its own, against which its references are resolved
    tools.append({"type": "function", "function": {"name": "h", "parameters": own}})
    for choice in ("required", *({"type": "function", "function": {"name": name}} for name in "gh")):
        answer = tooled.post(PATH, messages=HELLO, tools=tools, tool_choice=choice, max_tokens=200)["choices"][0]
        (call,) = answer["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"first": {"n": 7}, "default": {"n": 7}}


@pytest.mark.parametrize("thinking", [False, True])
def test_text_that_only_begins_like_reasoning_stays_text(thinking: bool) -> None:
    reader = AnswerReader(None, thinking=thinking, forced=False)
    deltas = [reader.feed(piece) for piece in "<th is"] + [reader.finish(whole=True)]
    text = "".join(delta.reasoning if thinking else delta.content for delta in deltas)
    assert text == "<th is"
    cut = AnswerReader(None, thinking=False, forced=False)
    assert [cut.feed("<thi"), cut.finish(whole=False)] == [Delta(), Delta(content="<thi")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": 2}, "logprobs"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HELLO, "tool_choice": "maybe"}, "tool_choice"),
        ({"messages": HELLO, "tools": TOOLS}, None),  # this template supports none
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": HELLO, "reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": HELLO, "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"messages": HELLO, "continue_final_message": True}, "continue_final_message"),
        ({"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": [{"role": "user", "content": "x " * 400_000}]}, None),
    ],
)
def test_invalid_chats_are_refused(served: Served, body: dict[str, Any], param: str | None) -> None:
    for stream in (False, True):
        response = served.client.post(PATH, json={**body, "stream": stream})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert param is None or error["param"] == param


@pytest.mark.parametrize("value", [False, None])
def test_a_chat_may_switch_off_further_special_tokens_explicitly(served: Served, value: bool | None) -> None:
    answer = served.post(PATH, messages=HELLO, max_tokens=1, add_special_tokens=value, return_token_ids=True)
    assert answer["prompt_token_ids"] == served.model.render_chat(HELLO)


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "other"}}, {"type": "function"}, {"function": 5}])
def test_an_invalid_tool_choice_is_refused(tooled: Served, choice: Any) -> None:
    response = tooled.client.post(PATH, json={"messages": HELLO, "tools": TOOLS, "tool_choice": choice})
    assert response.status_code == 400
    both = {"tool_choice": "required", "response_format": {"type": "json_object"}}
    assert tooled.client.post(PATH, json={"messages": HELLO, "tools": TOOLS, **both}).status_code == 400


def test_embeddings_equal_those_of_the_library(served: Served) -> None:
    texts = ["one text", "another"]
    expected = served.model.embed_sync(texts)
    answer = served.post("/v1/embeddings", input=texts)
    np.testing.assert_allclose([each["embedding"] for each in answer["data"]], expected, atol=1e-6)
    tokens = sum(len(served.model.tokenize(text)) for text in texts)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    coded = served.post("/v1/embeddings", input=texts[0], encoding_format="base64", pooling="mean")["data"][0]["embedding"]
    mean = served.model.embed_sync(texts[:1], "mean")[0]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded), "<f4"), mean, atol=1e-6)
    ids = served.post("/v1/embeddings", input=[served.model.tokenize(text) for text in texts])
    np.testing.assert_allclose([each["embedding"] for each in ids["data"]], expected, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [{}, {"input": []}, {"input": ""}, {"input": ["a", ""]}, {"input": "a", "dimensions": 3}, {"input": "a", "pooling": "x"}],
)
def test_invalid_embeddings_are_refused(served: Served, body: dict[str, Any]) -> None:
    response = served.client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_texts_and_ids_are_converted_into_each_other(served: Served) -> None:
    text = "The module defines ä 😀"
    answer = served.post("/tokenize", prompt=text, return_token_strs=True)
    ids = served.model.tokenize(text)
    assert (answer["tokens"], answer["count"]) == (ids, len(ids))
    assert (answer["max_model_len"], len(answer["token_strs"])) == (served.model.info.context_length, len(ids))
    assert served.post("/detokenize", tokens=ids) == {"prompt": text}
    pieces = served.post("/detokenize", tokens=ids, return_token_bytes=True)["token_bytes"]
    assert pieces == [served.model.decode_token(token).hex() for token in ids]
    for header in (True, False):
        rendered = served.post("/tokenize", messages=HELLO, add_generation_prompt=header)["tokens"]
        assert rendered == served.model.render_chat(HELLO, add_generation_prompt=header)
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": HELLO}),
        ("/detokenize", {"tokens": [10**6]}),
    ):
        assert served.client.post(path, json=body).status_code == 400


def test_tokenizer_info_has_the_eos_token_and_the_chat_template(served: Served) -> None:
    info = served.client.get("/tokenizer_info").json()
    assert (info["eos_token"], info["chat_template"]) == ("<|im_end|>", served.model.chat_template)


def test_a_required_call_with_a_repeated_key_stays_text() -> None:
    reader = AnswerReader([{"name": "f"}], thinking=False, forced=True)
    text = '{"name": "f", "parameters": {"a": 1, "a": 2}}'
    reader.feed(text)
    last = reader.finish(whole=True)
    assert (last.content, last.calls) == (text, ())
