"""Options as the command line and the lines of `--batch` spell them, and what the library says in Python said again so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Final

from runtime import OPTION_NAMES, LoadOptions, OptionError

LOADING: Final = frozenset(field.name for field in fields(LoadOptions))
FLAGS: Final = {  # names with a flag of their own
    "backend": "--backend",
    "weights": "--weights",
    "offload": "--offload",
    "chat_format": "--format",
    "chat_template_file": "--format",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "stop": "--stop",
    "seed": "--seed",
    "alternatives": "--alternatives",
    "adapters": "--adapter",
}
_BEAMS: Final = "Python: the command line has no beam search (model.beam_generate)"
ELSEWHERE: Final = {  # names that are no option of a generation here: what is used on a command line instead
    **dict.fromkeys(("grammar", "guided_grammar"), "--schema, --regex or --lark"),
    **dict.fromkeys(("response_format", "schema", "json_schema", "guided_json"), "--schema"),
    **dict.fromkeys(("regex", "guided_regex"), "--regex"),
    "lark": "--lark",
    **dict.fromkeys(("adapters", "lora", "lora_request"), "--adapter"),
    **dict.fromkeys(("alternatives", "logprobs", "top_logprobs"), "--alternatives"),
    "stages": "the window's Why, or Python",
    "sampling": "--option with the setting's own name",
    **dict.fromkeys(("num_beams", "beam_width", "beam_size", "beams", "use_beam_search", "num_beam_groups"), _BEAMS),
    **dict.fromkeys(("length_penalty", "early_stopping"), _BEAMS),
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), "--batch with as many equal lines"),
    **dict.fromkeys(
        ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"), '"tools" in a line of --batch'
    ),
    **dict.fromkeys(("stream", "stream_options", "streamer"), "nothing for it: an answer is printed as it comes"),
    **dict.fromkeys(("prompt", "inputs", "input_ids"), "TEXT itself, or --batch"),
    "messages": '"messages" in a line of --batch',
    **dict.fromkeys(("system", "system_prompt"), "--system"),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_tokens"), "ignore_eos=true, which goes on to --max-tokens"),
    "max_length": "--max-tokens, which counts the answer's tokens alone",
    **dict.fromkeys(("echo", "prompt_logprobs"), "elsewise score FILE"),
    **dict.fromkeys(("prompt_lookup_num_tokens", "num_assistant_tokens", "num_draft_tokens"), "--option 'speculative={}'"),
    "assistant_model": "--load draft_model=MODEL",
    **dict.fromkeys(("use_cache", "cache_prompt"), "--load cache=false"),
    "greedy": "--temperature 0",
    "logits_processor": "Python: a session's own steps (model.open_session)",
    "model": "--model",
}

_NAMES = sorted({*LOADING, *OPTION_NAMES, "backend"}, key=len, reverse=True)
_ONE = "|".join(_NAMES)
_LONG = "|".join(name for name in _NAMES if "_" in name)  # which no sentence has but as an option
_VALUE = r"'[^']*'|\"[^\"]*\"|\.\.\.|[A-Z]\w+\([^()]*\)|\([^()]*\)|[\w.+-]*\w"
_FREE = r"(?<![\w./'\"=-])(?<!--load )(?<!--option )"  # not within a path, a quotation, or what is spelt so already
_SET = re.compile(rf"{_FREE}({_ONE})=({_VALUE})")
_BARE = re.compile(rf"{_FREE}({_LONG})\b(?![\w'\"=]|\.\w)")
_AT_LOAD = re.compile(r"load\(\.\.\., ([^()]*)\)|load with (?=\w+=)")
_LITERAL = re.compile(r"\b(?<!')(True|False|None)\b(?!')")
_PYTHON_ALONE = re.compile(r" \(set_kv_budget\)")


def option_on_command_line(name: str) -> str:
    """How a name of the library is given to a command."""
    plain = re.split("[ :]", name, maxsplit=1)[0]  # of "blocks: budget", "logit_bias of token 3"
    if plain in FLAGS:
        spelt = FLAGS[plain]
    elif plain in LOADING:
        spelt = f"--load {plain}"
    elif plain in OPTION_NAMES:
        spelt = f"--option {plain}"
    else:
        return name
    return spelt + name[len(plain) :]


def in_options(fault: object) -> str:
    """What the library says, with the options of a command line in place of Python's keywords."""

    def setting(name: str, value: str) -> str:
        spelt = option_on_command_line(name)
        plain = "VALUE" if value == "..." else value.strip("'\"")
        return f"{spelt} {plain}" if name in FLAGS else f"{spelt}={plain}"

    return _said_again(fault, option_on_command_line, setting)


def in_json(fault: object) -> str:
    """What the library says, with the names and values of a JSON line in place of Python's keywords; loading has options."""

    def name_in_line(name: str) -> str:
        plain = re.split("[ :]", name, maxsplit=1)[0]
        return f'"{plain}"{name[len(plain) :]}' if plain in OPTION_NAMES else option_on_command_line(name)

    def setting(name: str, value: str) -> str:
        return f'"{name}": {value}'.replace("'", '"') if name in OPTION_NAMES else in_options(f"{name}={value}")

    return _said_again(fault, name_in_line, setting)


def _said_again(fault: object, spelt: Callable[[str], str], setting: Callable[[str, str], str]) -> str:
    message = fault.told(spelt(fault.option)) if isinstance(fault, OptionError) else str(fault)
    message = _PYTHON_ALONE.sub("", _AT_LOAD.sub(lambda found: found[1] or "", message))
    message = _SET.sub(lambda found: setting(found[1], found[2]), message)
    message = _BARE.sub(lambda found: spelt(found[1]), message)
    return _LITERAL.sub(lambda found: {"True": "true", "False": "false", "None": "null"}[found[1]], message)
