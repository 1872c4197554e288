"""The chat template of a model, and messages to token ids. Content never becomes control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.files import read_regular
from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.info import Message
from runtime.loading.integrity import template_digest
from runtime.options.load import LoadOptions
from runtime.text.formats import CHAT_FORMATS, NamedFormat
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import Tokenizer
from runtime.text.tool_calls import definitions_of
from runtime.text.utf8 import clean_text, spare_characters

TEXT_PARTS = ("text", "input_text", "output_text")  # types of text parts in OpenAI's two interfaces
ROLES = ("system", "developer", "user", "assistant", "tool")


def render_chat_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The token ids of a conversation in the model's template.

    They equal those of transformers' `apply_chat_template` if no message has the text of a control token. The template gets
    such a text as a private-use character, and it is tokenised as plain text; the template's own control tokens stay control
    tokens.

    Raises:
        UnsupportedFeatureError: The model has no chat template, or tools were given and its template takes none.
        InvalidRequestError: A message or tool has the wrong shape, or the template refuses it.
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
    # tokens only where the template writes them: control tokens, and other added tokens in its source
    control = [text for text in tokenizer.added if text in tokenizer.special or text in template.source]
    texts = "\0".join(_strings((checked, cleaned_tools)))
    found = [text for text in control if text in texts]
    if not found:
        text = template.render(checked, tools=cleaned_tools, add_generation_prompt=add_generation_prompt)
        return tokenizer.encode(text, special=True)
    spare = spare_characters(texts + template.source)
    aliases = {text: next(spare) for text in control}
    stand_ins = {text: next(spare) for text in found}
    hidden = [_mapped(m, _replacer(stand_ins, keep=_own_words(m, tokenizer))) for m in checked]
    hidden_tools = None if cleaned_tools is None else [_mapped(t, _replacer(stand_ins)) for t in cleaned_tools]
    text = template.render(hidden, tools=hidden_tools, add_generation_prompt=add_generation_prompt)
    text = _replacer(aliases)(text)  # control tokens that the template wrote
    text = _replacer({char: plain for plain, char in stand_ins.items()})(text)  # texts that the messages contain
    return tokenizer.encode_renamed(text, aliases)


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Checks messages; returns them as plain dictionaries with clean text.

    Raises:
        InvalidRequestError: There are no messages, a role is unknown, or content is not text; the error names the message's
            number.
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
    """Joins the content of a message in OpenAI's parts into one text, a line for each part."""
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
    """A tool call as templates read it: arguments in JSON text, as in OpenAI's interface, become an object."""
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


def _own_words(message: Message, tokenizer: Tokenizer) -> frozenset[str]:
    """Texts that are tokens in this message too: added tokens that are not control tokens (``<think>``), of an assistant."""
    return frozenset(tokenizer.added.keys() - tokenizer.special.keys()) if message["role"] == "assistant" else frozenset()


def _replacer(table: Mapping[str, str], keep: frozenset[str] = frozenset()) -> Callable[[str], str]:
    """A function that replaces every key by its value in one pass, longer keys first."""
    wanted = sorted((text for text in table if text not in keep), key=len, reverse=True)
    if not wanted:
        return str
    pattern = re.compile("|".join(map(re.escape, wanted)))
    return lambda text: pattern.sub(lambda match: table[match[0]], text)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in _strings(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item)]
    return []


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A copy in plain containers, with `change` applied to every string, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """The chat format of a loaded model."""

    # "model" (its own template), "none" (plain continuation), "custom" (the user's template), or a name of `CHAT_FORMATS`
    name: str
    template: ChatTemplate | None  # None for plain continuation
    eos_token_ids: tuple[int, ...]  # ids that end an answer: the model's own, and the format's end of a turn
    stops: tuple[str, ...] = ()  # texts that end an answer
    replaces: bool = False  # whether it differs from the model's own
    warnings: tuple[str, ...] = ()  # for `ModelInfo.warnings`

    @property
    def digest(self) -> str | None:
        """SHA-256 hex of the template's text."""
        return None if self.template is None else template_digest(self.template.source)


def choose_format(options: LoadOptions, tokenizer: Tokenizer, own: ChatTemplate | None) -> ChosenFormat:
    """Chooses the chat format of a load.

    Args:
        options: `chat_format`, `chat_template`, `chat_template_file` and `add_bos` are read.
        tokenizer: The model's tokenizer.
        own: The model's own template.

    Raises:
        InvalidRequestError: The user's template cannot be read or does not compile.
    """
    eos = tokenizer.eos_token_ids
    source = _custom_source(options)
    if source is not None:
        template = ChatTemplate(source, tokenizer.special_texts)
        template.check()
        return ChosenFormat("custom", template, eos, replaces=own is None or own.source != source)
    if options.chat_format == "none":
        return ChosenFormat("none", None, eos, replaces=own is not None)
    if options.chat_format != "auto":
        return _named(options, tokenizer)
    return ChosenFormat("none" if own is None else "model", own, eos)


def wants_bos(options: LoadOptions, tokenizer: Tokenizer) -> bool:
    """Whether texts get a beginning-of-text token."""
    wanted = {"model": tokenizer.adds_bos, "yes": True, "no": False}[options.add_bos]
    return wanted and tokenizer.bos_token_id is not None


def _named(options: LoadOptions, tokenizer: Tokenizer) -> ChosenFormat:
    form = CHAT_FORMATS[options.chat_format]
    bos = tokenizer.special_texts.get("bos_token", "") if wants_bos(options, tokenizer) else ""
    eos = tokenizer.eos_token_ids
    eos_text = tokenizer.decode(eos[:1])
    template = ChatTemplate(form.source, {"bos_token": bos, "eos_token": eos_text})
    stops = form.stops
    if form.end is not None:
        end = tokenizer.added.get(form.end)
        eos, stops = (eos, (form.end, *stops)) if end is None else ((*eos, *({end} - set(eos))), stops)
    warnings = _warnings(options.chat_format, form, tokenizer)
    return ChosenFormat(options.chat_format, template, eos, stops, replaces=True, warnings=warnings)


def _warnings(name: str, form: NamedFormat, tokenizer: Tokenizer) -> tuple[str, ...]:
    found: list[str] = []
    missing = [mark for mark in form.marks if mark not in tokenizer.added]
    if missing:
        found.append(
            f"chat_format={name!r}: the vocabulary has no {' and no '.join(missing)}, so they are written as plain text; the "
            "model has never seen them as tokens, and a message that spells them cannot be told from the format's own"
        )
    if "eos_token" in form.source and not tokenizer.eos_token_ids:
        found.append(f"chat_format={name!r}: the model has no end-of-text token, so nothing marks the end of an earlier answer")
    return tuple(found)


def _custom_source(options: LoadOptions) -> str | None:
    """The user's template; None without one.

    Raises:
        InvalidRequestError: The file is missing, too large, or not UTF-8.
    """
    if options.chat_template_file is None:
        return options.chat_template
    path = Path(options.chat_template_file)
    try:
        return read_regular(path, MAX_TEMPLATE_BYTES).decode()
    except OSError as fault:
        raise InvalidRequestError(f"{path}: the chat template cannot be read ({fault.strerror})") from fault
    except UnicodeDecodeError as fault:
        raise InvalidRequestError(f"{path}: not UTF-8 at byte {fault.start:,}; a chat template is a text") from fault
