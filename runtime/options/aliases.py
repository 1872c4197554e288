"""Options under the names of other libraries: Hugging Face, OpenAI, llama.cpp, mlx-lm.

For names that are not generation options here, a message names the place of the same setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from runtime.errors import InvalidRequestError, OptionError
from runtime.grammar.source import Grammar
from runtime.options.checking import as_tuple, check_value, flag, nearest, plain_number, shown
from runtime.options.generation import PARAMETERS, GenerationOptions, SamplingOptions
from runtime.options.load import LoadOptions
from runtime.options.speculation import SpeculativeOptions

_SPELLINGS = {
    "max_new_tokens": "max_tokens",  # Hugging Face
    "max_completion_tokens": "max_tokens",  # OpenAI
    "n_predict": "max_tokens",  # llama.cpp
    "stop_strings": "stop",
    "eos_token_id": "eos_token_ids",  # Hugging Face
    "stop_token_ids": "eos_token_ids",  # vLLM
    "response_format": "grammar",  # OpenAI
    "top_logprobs": "alternatives",
    "logprobs": "alternatives",
    "samplers": "order",
    **{alias: each.name for each in PARAMETERS.values() for alias in each.aliases},
}
_SAMPLING = frozenset(f.name for f in fields(SamplingOptions))
_WITHOUT_EFFECT = ("stream",)  # of OpenAI: here every answer can be streamed or taken whole
_CAN_BE_OFF = ("grammar", "speculative")
_GENERATION = frozenset(f.name for f in fields(GenerationOptions)) - {"sampling", "top_k"}
OPTION_NAMES = frozenset({*_SAMPLING, *_GENERATION, *_SPELLINGS, "alternatives", "do_sample", "sampling"})


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The checked fields of `GenerationOptions` that a mapping of options sets.

    A value of None counts as not given. In a flat mapping `top_k` is the sampler's, as in other libraries, and `alternatives`
    (or `top_logprobs`) is the number of recorded alternatives; in a mapping with a nested `sampling`, `top_k` is
    `GenerationOptions.top_k`. `response_format` is that of OpenAI: text, any JSON object, or a JSON schema. `stop_token_ids`
    replace the model's own eos ids. False for `grammar` or `speculative`, and the text format, set the field to None, which
    switches off the setting of a lower layer of `resolve_options`.

    Raises:
        GrammarError: An invalid JSON schema.
        InvalidRequestError: An unknown name (the message has the nearest name, or the place of the setting), two spellings that
            contradict each other, or a value out of range (under the given name).
    """
    if not isinstance(options, Mapping):
        raise InvalidRequestError(f"options are a mapping of names and values, not {shown(options)}")
    nested = options.get("sampling")
    inner = dict(nested.given()) if isinstance(nested, SamplingOptions) else nested
    if inner is not None and not isinstance(inner, Mapping):
        raise InvalidRequestError(f"sampling is a mapping of names and values, not {shown(inner)}")
    read = _Reading()
    for name, value in options.items():
        if name != "sampling":
            recorded = name == "top_k" and inner is not None
            read.take(name, "alternatives" if recorded else _ours(name), value)
    for name, value in (inner or {}).items():
        read.take(name, _ours(name), value)
    return read.made()


def _ours(name: str) -> str:
    return _SPELLINGS.get(name, name)


class _Reading:
    """The fields that were read so far, with their given names."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._shown: dict[str, str] = {}  # name and value as given, for messages
        self._names: dict[str, str] = {}  # field -> name as given
        self._sampled = False  # whether do_sample=True was given

    def take(self, name: str, field: str, value: Any) -> None:
        if name in _WITHOUT_EFFECT and isinstance(value, bool):
            return
        if not isinstance(name, str) or name not in OPTION_NAMES:
            hint = option_hint(name) or nearest(name, OPTION_NAMES)
            raise InvalidRequestError(f"unknown option {shown(name)}: {hint}")
        if value is None:
            return
        if name == "logprobs" and isinstance(value, bool):  # OpenAI's chat: a flag beside `top_logprobs`
            if value:
                return
            value = 0
        value = plain_number(value)
        as_given = f"{name}={shown(value)}"
        if name == "do_sample":
            check_value(name, value, flag)
            self._sampled = value
            if value:
                return
            field, value = "temperature", 0.0
        off = field in _CAN_BE_OFF and value is False
        value = None if off else _SHAPES[field](name, value) if field in _SHAPES else value
        if field in self._values and self._values[field] != value:
            raise InvalidRequestError(f"{self._shown[field]} and {as_given} contradict each other: give one of the two")
        self._values[field], self._shown[field], self._names[field] = value, as_given, name

    def made(self) -> dict[str, Any]:
        if self._sampled and self._values.get("temperature") == 0:
            given = self._shown["temperature"]
            raise InvalidRequestError(f"do_sample=True and {given} (greedy) contradict each other: give one of the two")
        sampling = {name: value for name, value in self._values.items() if name in _SAMPLING}
        found = {name: value for name, value in self._values.items() if name in _GENERATION}
        if "alternatives" in self._values:
            found["top_k"] = self._values["alternatives"]
        if sampling:
            found["sampling"] = SamplingOptions(**sampling)
        try:
            GenerationOptions(**found).check()
        except OptionError as fault:
            field = "alternatives" if fault.option == "top_k" and "top_k" not in sampling else fault.option
            raise OptionError(fault.words, self._names.get(field, fault.option), fault.value) from None
        return found


def _speculative(_: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    known = [f.name for f in fields(SpeculativeOptions)]
    for name in value:
        if name not in known:
            raise InvalidRequestError(f"unknown option {shown(name)} of speculative: {nearest(name, known)}")
    return SpeculativeOptions(**value)


def _grammar(name: str, value: Any) -> Any:
    if name == "response_format":
        return _formed(value)
    return Grammar(**value) if isinstance(value, Mapping) and set(value) == {"kind", "source"} else value


def _formed(given: Any) -> Grammar | None:
    """The grammar of OpenAI's `response_format`; None for the text format."""
    if isinstance(given, type):
        return Grammar.json_schema(given)
    kind = given.get("type") if isinstance(given, Mapping) else None
    inner = given.get("json_schema") if isinstance(given, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json_schema({"type": "object"})
    if kind == "json_schema" and isinstance(inner, Mapping) and "schema" in inner:
        return Grammar.json_schema(inner["schema"])
    wanted = '{"type": "json_schema", "json_schema": {"schema": ...}}, {"type": "json_object"} or {"type": "text"}'
    raise InvalidRequestError(f"response_format is {wanted}, not {shown(given)}")


def _adapters(_: str, value: Any) -> Any:
    return tuple(tuple(use) if isinstance(use, list) else use for use in value) if isinstance(value, list | tuple) else value


_SHAPES: dict[str, Callable[[str, Any], Any]] = {
    "stop": lambda _, value: as_tuple(value, str),
    "eos_token_ids": lambda _, value: as_tuple(value, int),
    "order": lambda _, value: as_tuple(value),
    "speculative": _speculative,
    "grammar": _grammar,
    "adapters": _adapters,
    **{each.name: each.read for each in PARAMETERS.values() if each.read is not None},
}


_BEAMS = "beam search is a call of its own: model.beam_generate(ids, BeamOptions(width=...))"
_MANY = "several answers to one prompt are model.continue_many(ids, n, options)"
_TOOLS = "a prompt tells the model of them: model.render_chat(messages, tools=...); parse_tool_calls reads the answer"
_STREAM = "every answer is streamed: iterate over model.generate(ids, options); model.complete gives the whole text"
_PROMPT = "what is asked stands before the options: model.generate(ids, options), model.complete(text or messages, options)"
_LEAST = "no least length can be asked for; ignore_eos=True goes on to max_tokens"
_SCORE = "model.score(ids) has what the model thinks of a prompt's tokens"
_GUESSES = "speculative=SpeculativeOptions(...), or a mapping of its names, turns on speculative decoding"
_SCHEMA = "a JSON schema is grammar=Grammar.json_schema(...), or a response_format"

OPTION_HINTS: Final = {
    **dict.fromkeys(("num_beams", "beam_width", "beam_size", "beams", "use_beam_search", "num_beam_groups"), _BEAMS),
    **{
        name: f"it belongs to beam search: model.beam_generate(ids, BeamOptions({name}=...))"
        for name in ("length_penalty", "early_stopping")
    },
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), _MANY),
    **dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"), _TOOLS),
    **dict.fromkeys(("stream", "stream_options", "streamer"), _STREAM),
    **dict.fromkeys(("prompt", "messages", "inputs", "input_ids", "system", "system_prompt"), _PROMPT),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_tokens"), _LEAST),
    "max_length": "it counts the prompt too; max_tokens counts the answer's tokens alone",
    **dict.fromkeys(("echo", "prompt_logprobs"), _SCORE),
    **dict.fromkeys(("prompt_lookup_num_tokens", "num_assistant_tokens", "num_draft_tokens"), _GUESSES),
    "assistant_model": "a draft model is loaded with the model: load(..., draft_model=...)",
    **dict.fromkeys(("use_cache", "cache_prompt"), "the cache is switched off for a whole model: load(..., cache=False)"),
    **dict.fromkeys(("guided_json", "json_schema", "schema"), _SCHEMA),
    **dict.fromkeys(("guided_regex", "regex"), "a regex is grammar=Grammar.regex(...)"),
    **dict.fromkeys(("guided_grammar", "lark"), "a Lark grammar is grammar=Grammar.lark(...)"),
    **dict.fromkeys(("lora", "lora_request"), "adapters=[(name, scale), ...] names the loaded ones that this request is under"),
    "greedy": "temperature=0 is greedy",
    "logits_processor": "one's own choice of tokens is a session's: model.open_session(), its logprobs and advance",
    "model": "a model is loaded first: load(model)",
}
_AT_LOAD: Final = frozenset(f.name for f in fields(LoadOptions))


def option_hint(name: object) -> str | None:
    """The place, in words, of the setting that another library calls by this name; None for an unknown name."""
    if not isinstance(name, str):
        return None
    plain = name.strip().replace("-", "_").casefold()
    if plain in _AT_LOAD:
        return f"it is decided when a model is loaded: load(..., {plain}=...)"
    return OPTION_HINTS.get(plain)
