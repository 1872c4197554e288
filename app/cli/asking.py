"""What the options of `elsewise ask` mean: how the model is loaded, how an answer is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeVar

import click

from app.cli.settings import Settings
from app.cli.spelling import in_options
from app.cli.values import (
    TEMPLATES,
    WEIGHTS,
    WEIGHTS_HELP,
    adapter_options,
    format_of,
    grammar_of,
    lark_of,
    load_options,
    named_options,
    naming_tokens,
    offload_of,
    schema_of,
    weights_of,
    with_token_ids,
)
from runtime import (
    GenerationOptions,
    GrammarError,
    InvalidRequestError,
    LanguageModel,
    ResolvedOptions,
    fresh_seed,
    resolve_options,
)

Command = TypeVar("Command", bound=Callable[..., Any])
PRESET: Final = {"max_tokens": 128, "temperature": 0.8, "top_p": 0.95, "min_p": 0.05}  # where nobody says otherwise


class Flags(TypedDict):
    """The options as click gives them."""

    model: str | None
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
    """An option that is not given says so: what holds then is `PRESET`'s."""
    return {"default": None, "show_default": str(PRESET[name])}


OPTIONS = (
    click.option("--model", help="A model folder, a GGUF file, or a name on the shelf."),
    click.option("--backend", help="auto, hf, mlx, mock, or a registered one."),
    click.option(
        "--format",
        "template",
        metavar="NAME|FILE",
        help=f"How a chat becomes text, in place of the model's own template: {', '.join(TEMPLATES[1:])}, or a file with a "
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
        help="Put a LoRA adapter on the model, a folder or one that elsewise models list shows; may be given again, they add "
        "up. Example: --adapter ./pirate:0.8 --adapter org/polite",
    ),
    click.option(
        "--load",
        "loads",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any option of loading by its name, the value as JSON or text; may be given again. Examples: --load kv_dtype=q8 "
        "--load draft_model=MODEL (of the same vocabulary; it guesses ahead with --option 'speculative={}')",
    ),
    click.option("--system", help='A system prompt. Example: --system "Answer in one word."'),
    click.option("--raw", is_flag=True, help="Continue TEXT as it is: no template, no roles."),
    click.option("--session", help="Continue the saved session of this title, or create it. Example: --session colours"),
    click.option(
        "--batch",
        metavar="FILE",
        help='Answer every line of a JSONL file ("-" for stdin), many at once. A line: {"prompt": "Hi"} or '
        '{"messages": [...]}, and as it likes "id", "system", "tools", "schema" or "regex" or "lark", "seed", "max_tokens", '
        '"stop", "temperature" and the like. One JSON line each comes back when it is done, with its "id" and "line".',
    ),
    click.option("--max-tokens", type=click.IntRange(1), **_preset("max_tokens"), help="End after so many tokens."),
    click.option("--stop", multiple=True, help="End before this text; may be given again. Example: --stop . --stop '?'"),
    click.option(
        "--schema",
        metavar="FILE|JSON",
        help="Answer with JSON that this JSON schema describes. "
        """Example: --schema '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}'""",
    ),
    click.option("--regex", help="Answer with a text that matches. Example: --regex '(yes|no)'"),
    click.option(
        "--lark",
        metavar="FILE|GRAMMAR",
        help="Answer with a text of this Lark grammar (llguidance's). "
        """Example: --lark 'start: "I like " /[a-z]{3,9}/ (" and " /[a-z]{3,9}/)?'""",
    ),
    click.option(
        "--temperature", type=float, **_preset("temperature"), help="0 takes the likeliest token each time. Example: 0.2"
    ),
    click.option("--top-k", type=click.IntRange(0), help="Sample among the so many likeliest tokens only. Example: 40"),
    click.option("--sample-top-k", type=click.IntRange(0), hidden=True),  # the name before; goes with the next release
    click.option(
        "--top-p",
        type=float,
        **_preset("top_p"),
        help="Sample among the likeliest tokens that together have this probability; 1 is off.",
    ),
    click.option(
        "--min-p",
        type=float,
        **_preset("min_p"),
        help="Sample among tokens with this share of the likeliest one's probability; 0 is off.",
    ),
    click.option(
        "--option",
        "named",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any other option of the sampler by its name, the value as JSON; may be given again. Examples: "
        "--option typical_p=0.9 --option xtc_probability=0.5 --option dry_multiplier=0.8 --option presence_penalty=0.5 "
        """--option 'logit_bias={" Paris": -5}' --option 'banned_tokens=[" rain", 36413]' (tokens by text or id) """
        """--option 'speculative={"method": "prompt_lookup"}' (guesses ahead what was said before: the same answer, maybe """
        "faster)",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        help="The same seed gives the same answer, alone or beside others; with --weights bfloat16, int8 or int4, or a model "
        "that computes in 16 bits, only where it is asked in the same way again. Example: --seed 7",
    ),
    click.option("--alternatives", type=click.IntRange(0, 1000), default=0, help="Show so many alternatives per token."),
    click.option("--json", "as_json", is_flag=True, help="One object a line: tokens, then the end."),
)


def asking(command: Command) -> Command:
    """Gives a command all of `OPTIONS`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Asked:
    """The options, checked.

    Attributes:
        model: What to load, on `backend`, with `load` (of `LoadOptions`).
        call: How answers are drawn, as far as the command line says it, by the names of `GenerationOptions.from_mapping`;
            the seed is set, but for a session's answer that nobody gave one.
        naming: More of them, that name tokens by what they say.
    """

    model: str
    backend: str
    load: dict[str, Any]
    call: dict[str, Any]
    naming: dict[str, Any]
    system: str | None
    raw: bool
    alternatives: int
    as_json: bool

    @classmethod
    def of(cls, settings: Settings, flags: Flags, *, chats: bool = False) -> Asked:
        """From the command line.

        Args:
            settings: Of all commands.
            flags: As click gives them.
            chats: Whether the answers are turns of a session although `flags` name none.

        Raises:
            click.UsageError: A value out of range, or two that contradict each other.
        """
        load = load_options("--load", flags["loads"]) | format_of(flags["template"]) | adapter_options(flags["adapters"])
        load |= offload_of(flags["offload"]) | weights_of(flags["weights"])
        in_session = chats or flags["session"] is not None  # which may have a seed of its own
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
            call["grammar"] = grammar_of(schema_of(flags["schema"]), flags["regex"], lark_of(flags["lark"]))
            resolve_options(call, preset=PRESET)
        except (InvalidRequestError, GrammarError) as fault:
            raise click.UsageError(in_options(fault)) from fault
        return cls(
            model=flags["model"] or settings.model,
            backend=flags["backend"] or settings.backend,
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
        """Of the one answer, outside a session."""
        seed: int = self.call["seed"]
        return seed

    @property
    def formed(self) -> bool:
        """Whether the answer must have a form."""
        return "grammar" in self.call

    def options(self, model: LanguageModel, line: Mapping[str, Any] | None = None) -> GenerationOptions:
        """What holds on a model: a line's own, then the command's, the preset, the model's own.

        Raises:
            InvalidRequestError, GrammarError: They contradict each other.
        """
        if line is None:
            return self.resolved(model).options
        return model.resolve_options(line, session=self.call_on(model), preset=PRESET).options

    def resolved(self, model: LanguageModel) -> ResolvedOptions:
        """What holds for the one answer, and who said so.

        Raises:
            InvalidRequestError, GrammarError: They contradict each other.
        """
        return model.resolve_options(self.call_on(model), preset=PRESET)

    def call_on(self, model: LanguageModel) -> dict[str, Any]:
        """`call`, with the model's ids for the tokens that are named by what they say.

        Raises:
            InvalidRequestError: A text that is no token of the model.
        """
        return self.call | (with_token_ids(self.naming, model.byte_vocab) if self.naming else {})


def top_k_of(flags: Flags) -> int | None:
    """How many of the likeliest tokens are sampled among. For one release, notes say what the names meant before."""
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
    """Options that make no sense together."""
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
