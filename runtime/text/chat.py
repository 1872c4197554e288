"""Messages to token ids. Content never becomes control tokens, whatever it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import Tokenizer
from runtime.text.utf8 import clean_text, spare_characters
from runtime.tools.definitions import definitions_of

Message = Mapping[str, Any]

TEXT_PARTS = ("text", "input_text", "output_text")  # of OpenAI's two interfaces
ROLES = ("system", "developer", "user", "assistant", "tool")


def render_chat_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The ids of a conversation, as the model's own template writes it.

    Without a control token's text in the messages this equals transformers' `apply_chat_template`. With one, the
    template sees a private-use character in its place, and the text itself is tokenised as plain text where that
    character stood; control tokens the template writes stay control tokens.

    Raises:
        UnsupportedFeatureError: The model has no chat template, or tools are given and its template takes none.
        InvalidRequestError: A message or tool of the wrong shape, or one that the template refuses.
    """
    if template is None:
        raise UnsupportedFeatureError(
            "the model has no chat template: it is a base model; give it plain text to continue, or load a chat model"
        )
    if tools:
        definitions_of(tools)
        if not template.takes_tools:
            raise UnsupportedFeatureError(
                "the chat template takes no tools: the model would never see them; load a model whose template does, or "
                "describe them in a system message"
            )
    checked = check_messages(messages)
    cleaned_tools = None if tools is None else [_mapped(tool, clean_text) for tool in tools]
    control = _control_texts(tokenizer, template)
    found = _search((checked, cleaned_tools), control)
    if not found:
        text = template.render(checked, tools=cleaned_tools, add_generation_prompt=add_generation_prompt)
        return tokenizer.encode(text, special=True)
    spare = spare_characters(_joined((checked, cleaned_tools, template.source)))
    aliases = {text: next(spare) for text in control}
    stand_ins = {text: next(spare) for text in found}
    hidden = [_mapped(m, _replacer(stand_ins, keep=_own_words(m, tokenizer))) for m in checked]
    hidden_tools = None if cleaned_tools is None else [_mapped(t, _replacer(stand_ins)) for t in cleaned_tools]
    text = template.render(hidden, tools=hidden_tools, add_generation_prompt=add_generation_prompt)
    text = _replacer(aliases)(text)  # what the template wrote itself
    text = _replacer({char: plain for plain, char in stand_ins.items()})(text)  # what the messages said
    return tokenizer.encode_renamed(text, aliases)


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain dictionaries with clean text.

    Raises:
        InvalidRequestError: No messages, an unknown role, content that is no text; the message's number is named.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequestError("messages is a list of at least one {'role': ..., 'content': ...}")
    checked: list[dict[str, Any]] = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"message {number} is a {type(message).__name__}, not a mapping of role and content")
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list | tuple):
            content = _joined_parts(content, f"message {number} ({role})")
            message = {**message, "content": content}
        if role not in ROLES:
            raise InvalidRequestError(f"message {number}: the role {role!r} is not one of {', '.join(ROLES)}")
        silent_call = role == "assistant" and content is None and message.get("tool_calls")
        if not isinstance(content, str) and not silent_call:
            raise InvalidRequestError(f"message {number} ({role}): content is a {type(content).__name__}, not text")
        plain = _mapped(message, clean_text)
        if message.get("tool_calls"):
            plain["tool_calls"] = [_checked_call(call, number) for call in _listed(plain["tool_calls"], number)]
        checked.append(plain)
    return checked


def _joined_parts(parts: Sequence[Any], where: str) -> str:
    """Content in parts, as OpenAI's interface has it: the texts of all, a line each."""
    texts: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"{where}: only parts {{'type': 'text', 'text': ...}} can be read, not {part!r:.60}")
        texts.append(part["text"])
    return "\n".join(texts)


def _listed(calls: Any, number: int) -> list[Any]:
    if not isinstance(calls, list):
        raise InvalidRequestError(f"message {number}: tool_calls is a list, not a {type(calls).__name__}")
    return calls


def _checked_call(call: Any, number: int) -> dict[str, Any]:
    """A call as templates take it: arguments written as JSON text, as OpenAI's interface has them, become an object."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f"message {number}: a tool call is {{'function': {{'name': ..., 'arguments': ...}}}}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return dict(call)
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError) as fault:
        raise InvalidRequestError(f"message {number}: the arguments of {function['name']} are no JSON: {fault}") from fault
    named = {**function, "arguments": read}
    return {**call, "function": named} if "function" in call else named


def _control_texts(tokenizer: Tokenizer, template: ChatTemplate) -> list[str]:
    """Texts that must stay the template's own: control tokens, and other added tokens the template writes itself."""
    return [text for text in tokenizer.added if text in tokenizer.special or text in template.source]


def _own_words(message: Message, tokenizer: Tokenizer) -> frozenset[str]:
    """What a message may write as a token: an assistant its added tokens that are no control tokens (``<think>``)."""
    return frozenset(tokenizer.added.keys() - tokenizer.special.keys()) if message["role"] == "assistant" else frozenset()


def _search(value: Any, texts: Sequence[str]) -> list[str]:
    """Which of `texts` occur anywhere in the strings of `value`, the longest first."""
    whole = _joined(value)
    return sorted((text for text in texts if text in whole), key=len, reverse=True)


def _replacer(table: Mapping[str, str], keep: frozenset[str] = frozenset()) -> Callable[[str], str]:
    """Replaces every key by its value in one pass, longer keys first."""
    wanted = sorted((text for text in table if text not in keep), key=len, reverse=True)
    if not wanted:
        return str
    pattern = re.compile("|".join(map(re.escape, wanted)))
    return lambda text: pattern.sub(lambda match: table[match[0]], text)


def _joined(value: Any) -> str:
    """All strings of a value, kept apart by NUL."""
    return "\0".join(_strings(value))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in _strings(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item)]
    return []


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The value with every string changed, keys too, in fresh plain containers."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
