"""Options of the command line and of `--batch` lines, and the library's messages translated to their spelling."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

import click

from app.cli.common import console, read_text
from app.cli.settings import TEXT, CliSettings, utf8
from runtime import (
    CHAT_FORMATS,
    OPTION_NAMES,
    Connection,
    GenerationOptions,
    Grammar,
    GrammarError,
    InvalidRequestError,
    LanguageModel,
    LoadOptions,
    LoadProgress,
    OptionError,
    ResolvedOptions,
    RuntimeFault,
    check_model,
    connect,
    find_connection,
    fresh_seed,
    load,
    resolve_options,
)

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
OPTION_HINTS: Final = {  # names of options in other libraries, and what to use on the command line
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
_LONG = "|".join(name for name in _NAMES if "_" in name)  # names that are not ordinary words of a sentence
_VALUE = r"'[^']*'|\"[^\"]*\"|\.\.\.|[A-Z]\w+\([^()]*\)|\([^()]*\)|[\w.+-]*\w"
_FREE = r"(?<![\w./'\"=-])(?<!--load )(?<!--option )"  # not in a path, a quotation, or an option of the command line
_SET = re.compile(rf"{_FREE}({_ONE})=({_VALUE})")
_BARE = re.compile(rf"{_FREE}({_LONG})\b(?![\w'\"=]|\.\w)")
_AT_LOAD = re.compile(r"load\(\.\.\., ([^()]*)\)|load with (?=\w+=)")
_LITERAL = re.compile(r"\b(?<!')(True|False|None)\b(?!')")
_PYTHON_ALONE = re.compile(r" \(`set_kv_budget`\)")


def option_on_command_line(name: str) -> str:
    """The option of the command line for a name of the library."""
    plain = re.split("[ :]", name, maxsplit=1)[0]  # the option in "blocks: budget" or "logit_bias of token 3"
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
    """A message of the library with options of the command line in place of Python's keywords."""

    def setting(name: str, value: str) -> str:
        spelt = option_on_command_line(name)
        plain = "VALUE" if value == "..." else value.strip("'\"")
        return f"{spelt} {plain}" if name in FLAGS else f"{spelt}={plain}"

    return _translated(fault, option_on_command_line, setting)


def in_json(fault: object) -> str:
    """A message of the library with names and values of a JSON line in place of Python's; load options stay options."""

    def name_in_line(name: str) -> str:
        plain = re.split("[ :]", name, maxsplit=1)[0]
        return f'"{plain}"{name[len(plain) :]}' if plain in OPTION_NAMES else option_on_command_line(name)

    def setting(name: str, value: str) -> str:
        return f'"{name}": {value}'.replace("'", '"') if name in OPTION_NAMES else in_options(f"{name}={value}")

    return _translated(fault, name_in_line, setting)


def _translated(fault: object, spelt: Callable[[str], str], setting: Callable[[str, str], str]) -> str:
    message = fault.told(spelt(fault.option)) if isinstance(fault, OptionError) else str(fault)
    message = _PYTHON_ALONE.sub("", _AT_LOAD.sub(lambda found: found[1] or "", message))
    message = _SET.sub(lambda found: setting(found[1], found[2]), message)
    message = _BARE.sub(lambda found: spelt(found[1]), message)
    return _LITERAL.sub(lambda found: {"True": "true", "False": "false", "None": "null"}[found[1]], message)


WEIGHTS: Final = ("float32", "float16", "bfloat16", "int8", "int4")
WEIGHTS_HELP: Final = (
    "Lower precision of the linear weights: faster on the CPU (hf), changes probabilities slightly. With "
    "bfloat16, int8 and int4 a seed can give another answer in a batch or after a branch. Example: --weights float16"
)
MAX_GRAMMAR_BYTES: Final = 8 << 20
TEMPLATES = ("auto", "none", *CHAT_FORMATS)


def grammar_of(schema: Any, regex: Any, lark: Any) -> Grammar | None:
    """The output format of an answer; None if none is given.

    Args:
        schema: A JSON schema, as JSON text or as an object.
        regex: A regular expression.
        lark: A Lark grammar's text.

    Raises:
        InvalidRequestError: More than one is given.
        GrammarError: llguidance refuses it, with its own message.
    """
    makers = {"a schema": Grammar.json_schema, "a regex": Grammar.regex, "a Lark grammar": Grammar.lark}
    given = [(name, form) for name, form in zip(makers, (schema, regex, lark), strict=True) if form is not None]
    if len(given) > 1:
        raise InvalidRequestError(f"{' and '.join(name for name, _ in given)} contradict each other: give one of them")
    return next((makers[name](form).check() for name, form in given), None)


def text_or_file(given: str | None, option: str, is_text: Callable[[str], bool]) -> str | None:
    """A grammar or a schema, given as text or by its file; `is_text` tells which.

    Raises:
        click.UsageError: The text is not UTF-8.
        click.ClickException: The file cannot be read.
    """
    if given is None:
        return None
    if not is_text(given):
        return read_text(given, MAX_GRAMMAR_BYTES)
    try:
        return utf8(given)
    except UnicodeError as error:
        raise click.UsageError(f"{option}: it is not UTF-8") from error


def _is_path(given: str) -> bool:
    """Whether a file has that name; a grammar may be too long to be a name."""
    try:
        return Path(given).exists()
    except (OSError, ValueError):
        return False


def format_of(given: str | None) -> dict[str, Any]:
    """Load options for a format's name or a template's file."""
    if given is None:
        return {}
    if given in TEMPLATES:
        return {"chat_format": given}
    if Path(given).is_file():
        return {"chat_template_file": given}
    raise click.UsageError(f"--format {given}: neither one of {', '.join(TEMPLATES)} nor a file")


def weights_of(given: str | None) -> dict[str, Any]:
    """The load option for weights in fewer bits, if given."""
    return {} if given in (None, "float32") else {"weights": given}


def load_options(flag: str, given: tuple[str, ...]) -> dict[str, Any]:
    """Load options, by the names of `LoadOptions`.

    Args:
        flag: The option of the command line, for messages.
        given: Each as NAME=VALUE: JSON, or else a text.

    Raises:
        click.UsageError: Another form, a name given twice, an unknown name, or a value out of range.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise click.UsageError(f"{flag} {text}: write NAME=VALUE, such as kv_dtype=q8")
        if name in found:
            raise click.UsageError(f"{flag} {name} is given twice")
        found[name] = json_or_text(value)
    try:
        LoadOptions.from_mapping(found)
    except OptionError as fault:
        raise click.UsageError(in_options(OptionError(fault.words, f"{flag} {fault.option}", fault.value))) from fault
    except RuntimeFault as fault:
        raise click.UsageError(f"{flag}: {in_options(fault)}") from fault
    return found


def json_or_text(value: str) -> Any:
    """A value as JSON, or else the text itself."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def named_options(given: tuple[str, ...], said: Collection[str]) -> dict[str, Any]:
    """The options of --option NAME=VALUE: JSON, or else a text.

    Raises:
        click.UsageError: Another form, a name given twice, or one that has a flag of its own.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise click.UsageError(f"--option {text}: write NAME=VALUE, such as typical_p=0.9")
        if name in OPTION_HINTS:
            raise click.UsageError(f"--option {name}: use {OPTION_HINTS[name]}")
        if name in LOADING - OPTION_NAMES:
            raise click.UsageError(f"--option {name}: use --load {name}={value}, for it is decided when a model is loaded")
        if name in found or name in said:
            raise click.UsageError(f"--option {name} is given twice")
        found[name] = json_or_text(value)
    return found


def naming_tokens(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that give tokens by their text, whose ids only a model knows."""
    found: dict[str, Any] = {}
    banned, biases = options.get("banned_tokens"), options.get("logit_bias")
    banned = [banned] if isinstance(banned, str) else banned
    if isinstance(banned, list) and any(isinstance(token, str) for token in banned):
        found["banned_tokens"] = banned
    if isinstance(biases, dict) and not all(key.removeprefix("-").isdecimal() for key in biases):
        found["logit_bias"] = biases
    return found


def with_token_ids(options: Mapping[str, Any], tokens: list[bytes]) -> dict[str, Any]:
    """Replaces texts of tokens by ids, as the window does.

    Args:
        options: Options that give tokens by their text.
        tokens: The model's tokens, by id.

    Raises:
        InvalidRequestError: A text is not a token of the model; names the token that it begins with.
    """
    from app.workbench.prompt.vocabulary import TokenBytes, with_ids  # these import the window's code
    from ui import Refusal

    try:
        return {name: with_ids(name, value, TokenBytes(tokens)) for name, value in options.items()}
    except Refusal as refusal:
        raise InvalidRequestError(str(refusal)) from refusal


def adapter_options(given: tuple[str, ...]) -> dict[str, Any]:
    """Load options of adapters, each with a scale after the last colon, or 1."""
    found: list[tuple[str, float]] = []
    for text in given:
        path, colon, end = text.rpartition(":")
        try:
            scale = float(end)
        except ValueError:
            if colon and path.strip() and "/" not in end and not Path(text).exists():
                raise click.ClickException(f"--adapter {text}: {end!r} is no scale: write a number, {path}:0.8") from None
            path, scale = text, 1.0
        if not colon:
            path, scale = text, 1.0
        if not path.strip():
            raise click.UsageError(
                f"--adapter {text}: write the adapter's folder or name, and a scale after a colon: ./pirate:0.8"
            )
        if not math.isfinite(scale):
            raise click.UsageError(f"--adapter {text}: the scale is a finite number (1 is as trained)")
        found.append((path, scale))
    return {"adapters": tuple(found)} if found else {}


Command = TypeVar("Command", bound=Callable[..., Any])
PRESET: Final = {"max_tokens": 128, "temperature": 0.8, "top_p": 0.95, "min_p": 0.05}  # defaults of `ask`


class Flags(TypedDict):
    """The options as click gives them."""

    model: str | None
    connect_to: str | None
    plain_http: bool
    tokenizer: str | None
    backend: str | None
    template: str | None
    adapters: tuple[str, ...]
    offload: str | None
    weights: str | None
    loads: tuple[str, ...]
    system: str | None
    raw: bool
    session: str | None
    batch: str | None
    max_tokens: int | None
    stop: tuple[str, ...]
    schema: str | None
    regex: str | None
    lark: str | None
    temperature: float | None
    top_k: int | None
    sample_top_k: int | None
    top_p: float | None
    min_p: float | None
    named: tuple[str, ...]
    seed: int | None
    alternatives: int
    as_json: bool


def _preset(name: str) -> dict[str, Any]:
    """Click's arguments for an option of `PRESET`: no default, so that a missing option is None; the help shows the preset."""
    return {"default": None, "show_default": str(PRESET[name])}


MODEL_OPTIONS = (
    click.option("--model", help="A model folder, a GGUF file, or a name on the shelf."),
    click.option(
        "--connect",
        "connect_to",
        metavar="URL",
        help="Use a model on a server (vLLM, elsewise serve, others with OpenAI's completions); --model is its id there. The "
        "key is the keychain's (elsewise models connect), or ELSEWISE_API_KEY if ELSEWISE_API_HOST names this host. Example: "
        "--connect http://127.0.0.1:8000",
    ),
    click.option("--plain-http", is_flag=True, help="With --connect: allow unencrypted HTTP to another machine."),
    click.option("--tokenizer", metavar="PATH|NAME", help="With --connect: a tokenizer of this machine, or 'server'."),
    click.option("--backend", help="auto, hf, mlx, mock, or a registered one."),
)
OPTIONS = (
    *MODEL_OPTIONS,
    click.option(
        "--format",
        "template",
        metavar="NAME|FILE",
        help=f"Chat template to use instead of the model's own: {', '.join(TEMPLATES[1:])}, or a file with a "
        "jinja2 template. Example: --format chatml",
    ),
    click.option(
        "--offload",
        type=click.Choice(("none", "disk")),
        help="disk: weights that do not fit into memory are read from disk for every token (slow; hf only).",
    ),
    click.option("--weights", type=click.Choice(WEIGHTS), help=WEIGHTS_HELP),
    click.option(
        "--adapter",
        "adapters",
        multiple=True,
        metavar="PATH|NAME[:SCALE]",
        help="Put a LoRA adapter on the model, a folder or one that elsewise models list shows; can be repeated (they add "
        "up). Example: --adapter ./pirate:0.8 --adapter org/polite",
    ),
    click.option(
        "--load",
        "loads",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any load option by name, the value as JSON or text; can be repeated. Examples: --load kv_dtype=q8 "
        "--load draft_model=MODEL (of the same vocabulary; it drafts tokens with --option 'speculative={}')",
    ),
    click.option("--system", type=TEXT, help='A system prompt. Example: --system "Answer in one word."'),
    click.option("--raw", is_flag=True, help="Continue TEXT as it is: no template, no roles."),
    click.option(
        "--session", type=TEXT, help="Continue the saved session with this title, or create it. Example: --session colours"
    ),
    click.option(
        "--batch",
        metavar="FILE",
        help='Answer every line of a JSONL file ("-" for stdin), many at once. A line: {"prompt": "Hi"} or '
        '{"messages": [...]}, and as it likes "id", "system", "tools", "schema" or "regex" or "lark", "seed", "max_tokens", '
        '"stop", "temperature" and the like. One JSON line each comes back when it is done, with its "id" and "line".',
    ),
    click.option("--max-tokens", type=click.IntRange(1), **_preset("max_tokens"), help="Stop after this many tokens."),
    click.option(
        "--stop", type=TEXT, multiple=True, help="Stop before this text; can be repeated. Example: --stop . --stop '?'"
    ),
    click.option(
        "--schema",
        metavar="FILE|JSON",
        help="Answer with JSON that this JSON schema describes. "
        """Example: --schema '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}'""",
    ),
    click.option(
        "--regex", type=TEXT, help="Answer with text that matches this regular expression. Example: --regex '(yes|no)'"
    ),
    click.option(
        "--lark",
        metavar="FILE|GRAMMAR",
        help="Answer with text that this Lark grammar (llguidance's dialect) allows. "
        """Example: --lark 'start: "I like " /[a-z]{3,9}/ (" and " /[a-z]{3,9}/)?'""",
    ),
    click.option(
        "--temperature", type=float, **_preset("temperature"), help="0 always takes the most probable token. Example: 0.2"
    ),
    click.option("--top-k", type=click.IntRange(0), help="Sample only among this many most probable tokens. Example: 40"),
    click.option("--sample-top-k", type=click.IntRange(0), hidden=True),  # the old name, until the next release
    click.option(
        "--top-p",
        type=float,
        **_preset("top_p"),
        help="Sample among the most probable tokens that together have this probability; 1 is off.",
    ),
    click.option(
        "--min-p",
        type=float,
        **_preset("min_p"),
        help="Sample among tokens with at least this share of the highest probability; 0 is off.",
    ),
    click.option(
        "--option",
        "named",
        type=TEXT,
        multiple=True,
        metavar="NAME=VALUE",
        help="Any other sampling option by name, the value as JSON; can be repeated. Examples: "
        "--option typical_p=0.9 --option xtc_probability=0.5 --option dry_multiplier=0.8 --option presence_penalty=0.5 "
        """--option 'logit_bias={" Paris": -5}' --option 'banned_tokens=[" rain", 36413]' (tokens by text or id) """
        """--option 'speculative={"method": "prompt_lookup"}' (drafts tokens from the text before: the same answer, maybe """
        "faster)",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        help="The same seed gives the same answer, alone or in a batch; with --weights bfloat16, int8 or int4, or a model "
        "that computes in 16 bits, only for the same request. Example: --seed 7",
    ),
    click.option("--alternatives", type=click.IntRange(0, 1000), default=0, help="Show this many alternatives per token."),
    click.option("--json", "as_json", is_flag=True, help="One object a line: tokens, then the end."),
)


def model_options(command: Command) -> Command:
    """Adds `MODEL_OPTIONS` to a command."""
    return reduce(lambda made, option: option(made), reversed(MODEL_OPTIONS), command)


def answer_options(command: Command) -> Command:
    """Adds all of `OPTIONS` to a command."""
    return reduce(lambda made, option: option(made), reversed(OPTIONS), command)


adapter_option = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="PATH|NAME[:SCALE]",
    help="Put a LoRA adapter on the model, as `elsewise ask` does; can be repeated (they add up).",
)


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The checked options of `ask` and `chat`."""

    model: str  # the model to load, on `backend`, with `load` (of `LoadOptions`)
    backend: str
    load: dict[str, Any]
    # options of the answers by the names of `GenerationOptions.from_mapping`; with a seed, except for sessions without `--seed`
    call: dict[str, Any]
    naming: dict[str, Any]  # the options that give tokens by their text
    system: str | None
    raw: bool
    alternatives: int
    as_json: bool

    @classmethod
    def of(cls, settings: CliSettings, flags: Flags, *, chats: bool = False) -> AnswerOptions:
        """Checks the options of the command line.

        Args:
            settings: The global options.
            flags: As click gives them.
            chats: Whether the answers are turns of a session that `flags` do not name.

        Raises:
            click.UsageError: A value out of range, or two that contradict each other.
        """
        load = load_options("--load", flags["loads"]) | format_of(flags["template"]) | adapter_options(flags["adapters"])
        load |= weights_of(flags["weights"])
        if flags["offload"] == "disk":
            load["offload"] = "disk"
        load |= connection_of(flags["connect_to"], flags["model"], flags["tokenizer"], plain_http=flags["plain_http"])
        in_session = chats or flags["session"] is not None  # a session may have its own seed
        _check_company(flags, load, chats=chats)
        seed = fresh_seed() if flags["seed"] is None and not in_session else flags["seed"]
        recorded = max(flags["alternatives"], 10) if in_session else flags["alternatives"]
        call: dict[str, Any] = {
            "max_tokens": flags["max_tokens"],
            "temperature": flags["temperature"],
            "top_k": flags["top_k"] if chats else top_k_of(flags),
            "top_p": flags["top_p"],
            "min_p": flags["min_p"],
            "stop": flags["stop"] or None,
            "alternatives": recorded,
            "seed": seed,
        }
        named = named_options(flags["named"], {name for name, value in call.items() if value is not None})
        naming = naming_tokens(named)
        call |= {name: value for name, value in named.items() if name not in naming}
        try:
            schema = text_or_file(flags["schema"], "--schema", lambda text: text.lstrip().startswith(("{", "[")))
            lark = text_or_file(flags["lark"], "--lark", lambda text: ":" in text and not _is_path(text))
            call["grammar"] = grammar_of(schema, flags["regex"], lark)
            resolve_options(call, preset=PRESET)
        except (InvalidRequestError, GrammarError) as fault:
            raise click.UsageError(in_options(fault)) from fault
        model, backend = settings.chosen(flags["model"], flags["backend"])
        return cls(
            model=model,
            backend=backend,
            load=load,
            call={name: value for name, value in call.items() if value is not None},
            naming=naming,
            system=flags["system"] or None,
            raw=flags["raw"],
            alternatives=flags["alternatives"],
            as_json=flags["as_json"],
        )

    @property
    def seed(self) -> int:
        """The seed of an answer outside a session."""
        seed: int = self.call["seed"]
        return seed

    @property
    def formed(self) -> bool:
        """Whether the answer has an output format."""
        return "grammar" in self.call

    def options(self, model: LanguageModel, line: Mapping[str, Any]) -> GenerationOptions:
        """The options of a line on a model: the line's take precedence, then the command's, the preset's, the model's.

        Raises:
            InvalidRequestError, GrammarError: They contradict each other.
        """
        return model.resolve_options(line, session=self.call_on(model), preset=PRESET).options

    def resolved(self, model: LanguageModel) -> ResolvedOptions:
        """The options of the one answer, with their sources.

        Raises:
            InvalidRequestError, GrammarError: They contradict each other.
        """
        return model.resolve_options(self.call_on(model), preset=PRESET)

    def call_on(self, model: LanguageModel) -> dict[str, Any]:
        """`call`, with the model's ids for tokens given by their text.

        Raises:
            InvalidRequestError: A text is not a token of the model.
        """
        return self.call | (with_token_ids(self.naming, model.byte_vocab) if self.naming else {})


def top_k_of(flags: Flags) -> int | None:
    """The sampler's top_k; for one release, prints notes about the old names."""
    top_k, before = flags["top_k"], flags["sample_top_k"]
    if before is not None:
        if top_k is not None:
            raise click.UsageError("--sample-top-k is the old name of --top-k: give one of the two")
        click.echo("note: --sample-top-k is called --top-k now", err=True)
        return before
    if top_k is not None and not flags["alternatives"] and flags["batch"] is None:
        click.echo(
            f"note: --top-k {top_k} samples among the {top_k} likeliest tokens; what it was before, alternatives beside each "
            f"token, is --alternatives {top_k}",
            err=True,
        )
    return top_k


def _check_company(flags: Flags, load: Mapping[str, Any], *, chats: bool) -> None:
    """Refuses options that contradict each other."""
    in_session = chats or flags["session"] is not None
    if flags["session"] is not None and not chats and (flags["system"] or flags["raw"]):
        raise click.UsageError("--session keeps its own system prompt and template: leave out --system and --raw")
    if in_session and load.get("chat_format") == "none":
        raise click.UsageError("a session is a chat: --format none has no roles; choose another, such as plain")
    if in_session and "blocks" in load:
        raise click.UsageError("a session keeps its KV where the window keeps it: leave out --load blocks")
    if flags["raw"] and (flags["system"] or flags["template"]):
        raise click.UsageError("--raw knows no roles: leave out --system and --format")
    if flags["batch"] is not None:
        for name, given in (("--session", flags["session"] is not None), ("--alternatives", flags["alternatives"])):
            if given:
                raise click.UsageError(f"--batch answers lines, each on its own: leave out {name}")


def connection_of(url: str | None, model: str | None, tokenizer: str | None, *, plain_http: bool) -> dict[str, Any]:
    """The connection for `load_model`; empty without a URL.

    Raises:
        click.UsageError: Options of --connect are given without it.
    """
    if url is not None:
        return {"connection": Connection("command-line", url, model, plain_http, tokenizer)}
    if plain_http or tokenizer is not None:
        raise click.UsageError(f"{'--plain-http' if plain_http else '--tokenizer'} goes with --connect URL")
    return {}


def load_model(model: str, backend: str, *, connection: Connection | None = None, **options: Any) -> LanguageModel:
    """Loads a model into this process or connects to a server, with a spinner and then the warnings on stderr."""
    connection = connection or find_connection(model)
    if connection is not None:
        with console.status(f"connecting to {connection.base_url}"):
            known = {name: value for name, value in options.items() if name != "blocks"}  # the server has its own KV
            remote = connect(**connection.arguments(), **known)
        for warning in remote.info.warnings:
            click.echo(f"note: {warning}", err=True)
        return remote
    _stay_offline()
    with console.status(f"loading {model}") as status:

        def show(progress: LoadProgress) -> None:
            far = f"{progress.done:,} of {progress.total:,} tensors"
            if progress.stage == "importing":
                far = "importing the file" + (f", {progress.done / progress.total:.0%}" if progress.total else "")
            status.update(f"loading {model}: {'checking the numbers' if progress.stage == 'checking' else far}")

        loaded = load(model, backend, on_progress=show, **options)
    asked = set(options) - {"blocks"}  # set by the command itself
    for warning in loaded.info.warnings if asked else ():  # about given options only
        click.echo(f"note: {in_options(warning)}", err=True)
    return loaded


def can_chat(model: str, backend: str, **options: Any) -> bool:
    """Checks the files of a model; returns whether it has a chat template. Always true for a server, checked on connection.

    Raises:
        RuntimeFault: The model is not here, or `load_model` would refuse it before it reads weights.
    """
    if find_connection(model) is not None:
        return True
    _stay_offline()
    return check_model(model, backend, **options)


def _stay_offline() -> None:
    """Keeps libraries from looking for files on the network; called before they are imported."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.pop("MLX_LM_TRUST_REMOTE_CODE", None)


def precision_note(model: LanguageModel) -> str:
    """The precision of a model with quantised weights; empty for others."""
    return model.info.precision if model.info.quantisation else ""
