"""The values of a dialect: requests to a server, answers, facts and abilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeGuard

from runtime.errors import RemoteError
from runtime.grammar.source import Grammar
from runtime.options.generation import GenerationOptions
from runtime.options.priority import Priority

FULL: Final = -1  # alternatives: the whole vocabulary
_MOST_NAME: Final = 500  # characters of a model's id


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a server; the defaults are the least."""

    token_prompts: bool = False  # takes token ids as a prompt
    token_ids: bool = False  # returns the ids of generated tokens
    alternatives: int = 0  # the most log-probabilities per position; 0: none
    full_vector: bool = False  # log-probabilities of the whole vocabulary, on request
    chosen_ids: int = 0  # the most ids whose exact values one request can ask for
    prompt_logprobs: bool = False  # scores given texts
    ranks: bool = False  # scores of given texts have the exact rank of each token
    cached_tokens: bool = False  # reports how many tokens of a prompt were in its cache
    cache_salt: bool = False  # separates the cache by a salt
    priority: bool = False  # takes a priority with a request; vLLM does not report whether its scheduler uses it
    tokenizer: bool = False  # tokenises and detokenises
    chat: bool = False  # renders a conversation to token ids
    grammars: frozenset[str] = frozenset()  # kinds of `Grammar` that it enforces
    embeddings: bool = False  # embeds texts
    ignores_eos: bool = False  # generates past the model's own eos on request
    sampling: frozenset[str] = frozenset({"temperature", "top_p"})  # names of the sampler settings that it takes
    plain: int | None = None  # a token of whole characters, which `LlamaCpp` forces to get log-probabilities

    def labels(self) -> tuple[str, ...]:
        """The abilities in words, for `ModelInfo.capabilities`."""
        parts = {
            "token prompts": self.token_prompts,
            "token ids": self.token_ids,
            f"top {self.alternatives:,}": self.alternatives > 0,
            "full vectors": self.full_vector,
            f"{self.chosen_ids} chosen ids": self.chosen_ids > 0,
            "prompt log-probabilities": self.prompt_logprobs,
            "ranks": self.ranks,
            "cached tokens": self.cached_tokens,
            "cache salt": self.cache_salt,
            "takes a priority": self.priority,
            "tokenizer": self.tokenizer,
            "chat template": self.chat,
            "embeddings": self.embeddings,
        }
        return (*(name for name, has in parts.items() if has), *(f"grammar: {kind}" for kind in sorted(self.grammars)))

    def warnings(self, server: str) -> tuple[str, ...]:
        """The missing abilities, in sentences for `ModelInfo.warnings`."""
        found = ["the KV is on the server: nothing of it can be looked into, pinned or saved, and snapshots have tokens alone"]
        if not self.full_vector:
            some = f"the {self.alternatives:,} likeliest tokens" if self.alternatives else "no log-probabilities"
            found.append(f"{server} gives {some} of a position, not the whole vocabulary")
        if not self.prompt_logprobs:
            found.append(f"{server} does not score given texts")
        elif not self.ranks:
            found.append(f"{server} gives no ranks of given tokens beyond its alternatives")
        if not self.token_prompts:
            found.append(f"{server} takes prompts as text: what it reads may be other tokens than those shown")
        if not self.token_ids:
            found.append(f"{server} returns no token ids: ids are found by their text, and no branch can leave at a token")
        if not self.ignores_eos:
            found.append(f"{server} ends answers where the model does, also with `ignore_eos` or other `eos_token_ids`")
        if not self.embeddings:
            found.append(f"{server} has no embeddings of this model")
        return tuple(found)


class RemoteModel(NamedTuple):
    """A server's information about one of its models."""

    model: str  # its id on the server
    context: int  # tokens; 0: not known
    names: tuple[str, ...] = ()  # names that its tokenizer may have on the shelf
    adapters: tuple[str, ...] = ()  # ids of LoRA adapters of this model
    vocab: int = 0  # 0: not known
    tokenizer_digest: str = ""  # `LanguageModel.tokenizer_digest`; empty where the server does not report it
    eos: tuple[int, ...] = ()
    has_template: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as ids, and as text for servers that take no ids."""

    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRequest:
    """One request for tokens.

    Attributes:
        model: Id on the server; an adapter's id for a LoRA.
        prompt: The text to continue.
        max_tokens: The most tokens to generate.
        alternatives: Log-probabilities wanted per position; `FULL` for all.
        chosen: Ids whose log-probabilities are wanted in addition to the alternatives.
        scored: Alternatives wanted for each token of the prompt; None: the prompt is not scored.
        options: Sampler and grammar, resolved; None is greedy.
        seed: Seed of the server's random numbers.
        eos: Ids that end the answer; None leaves it to the server.
        own_eos: Whether the model's own eos ids end the answer too.
        salt: Separates the server's prefix cache.
        priority: Order of the prompt among waiting requests.
    """

    model: str
    prompt: Prompt
    max_tokens: int = 1
    alternatives: int = 0
    chosen: tuple[int, ...] = ()
    scored: int | None = None
    options: GenerationOptions | None = None
    seed: int | None = None
    eos: tuple[int, ...] | None = None
    own_eos: bool = True
    salt: str = ""
    priority: Priority = Priority.INSPECTOR

    @property
    def grammar(self) -> Grammar | None:
        return None if self.options is None else self.options.grammar


class TokenAlternatives(NamedTuple):
    """Log-probabilities at one position, unsorted parallel lists; keys are ids, or texts where the server returns no ids."""

    keys: list[int] | list[str]
    logprobs: list[float]


class AnswerToken(NamedTuple):
    """One token of an answer; without ids, the text may be that of several tokens."""

    token: int | None  # None where the server returns no ids
    text: str
    logprob: float | None
    alternatives: TokenAlternatives | None


class Scored(NamedTuple):
    """Log-probabilities at one token of a prompt, including the token's own, as parallel lists; rank 0: not known."""

    ids: list[int]
    ranks: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """A part of an answer, or a whole answer."""

    pieces: Sequence[AnswerToken] = ()  # its new tokens
    # on the last chunk: "stop", "length" or another word of the server; "eos" where the last token ended the answer
    finish: str | None = None
    stopped_by: int | None = None  # the token id that ended the answer, where the server names it
    prompt: Sequence[Scored | None] | None = None  # scores of the prompt's tokens, None for the first
    prompt_tokens: int | None = None  # as the server counts them; None: not known
    cached_tokens: int | None = None  # prompt tokens found in its cache
    # number of tokens of the answer so far. If it is set, `pieces` may begin with tokens of earlier chunks, or lack the
    # first new tokens, whose bytes are then only in `text`
    generated: int | None = None
    text: str = ""  # of the new tokens, without the token that ended the answer


@dataclass(frozen=True, slots=True)
class Probe:
    """A server's introspection pages, as parsed JSON by path; pages that the server lacks are left out."""

    pages: Mapping[str, Any] = field(default_factory=dict)

    @property
    def models(self) -> list[dict[str, Any]]:
        """The entries of ``/v1/models`` whose ids can be shown."""
        page = self.pages.get("/v1/models")
        listed = page.get("data") if isinstance(page, dict) else None
        entries = listed if isinstance(listed, list) else ()
        return [entry for entry in entries if isinstance(entry, dict) and _is_printable(entry.get("id"))]

    def version(self, path: str, name: str) -> str:
        """The server's version in a page's field, at most 40 characters; "" where it cannot be shown."""
        page = self.pages.get(path)
        version = page.get(name) if isinstance(page, dict) else None
        return version[:40] if _is_printable(version) else ""


def _is_printable(name: object) -> TypeGuard[str]:
    """Whether this is a name in one line without control characters, of at most `_MOST_NAME` characters."""
    return isinstance(name, str) and name.isprintable() and len(name) <= _MOST_NAME


def malformed(what: str) -> RemoteError:
    """The error for an answer of an unexpected shape."""
    return RemoteError(f"the server's answer cannot be used: {what}", "protocol")


def checked_logprob(value: float) -> float:
    """A checked log-probability, at most 0: rounding above 0 is cut off. Minus infinity is accepted, since servers clamp to it.

    Raises:
        RemoteError: Any other value.
    """
    if math.isnan(value) or value > 0.01:
        raise malformed(f"a log-probability is {value}")
    return min(value, 0.0)
