"""What servers have in common: requests and answers as values, abilities, and the Protocol of a dialect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from runtime.errors import RemoteError
from runtime.grammar.source import Grammar
from runtime.options.generation import GenerationOptions
from runtime.options.priority import Priority
from runtime.remote.http import HttpClient

FULL: Final = -1  # alternatives: the whole vocabulary
_MOST_NAME: Final = 500  # characters of a model's id


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a server can do for us. The default of each is "no"."""

    token_prompts: bool = False  # takes token ids as a prompt
    token_ids: bool = False  # returns the ids of what it generated
    alternatives: int = 0  # log-probabilities per position, at most; 0 for none
    full_vector: bool = False  # those of the whole vocabulary on request
    chosen_ids: int = 0  # ids whose exact values can be asked for in one request
    prompt_logprobs: bool = False  # scores a given text
    ranks: bool = False  # with the exact rank of each token
    cached_tokens: bool = False  # says how much of a prompt its cache had
    cache_salt: bool = False  # separates the cache by a salt
    priority: bool = False  # takes a priority with a request; that it has a policy for it is not said by vLLM
    tokenizer: bool = False  # tokenises and detokenises
    chat: bool = False  # renders a conversation to token ids
    grammars: frozenset[str] = frozenset()  # kinds of `Grammar` that it enforces
    embeddings: bool = False  # has vectors of texts
    ignores_eos: bool = False  # goes on behind the model's own end where a request says so
    sampling: frozenset[str] = frozenset({"temperature", "top_p"})  # names of the sampler's settings that it takes
    plain: int | None = None  # a token of whole characters, where questions are asked by one (`LlamaCpp`)

    def told(self) -> tuple[str, ...]:
        """For `ModelInfo.capabilities`."""
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

    def lacking(self, server: str) -> tuple[str, ...]:
        """What is off, in sentences for `ModelInfo.warnings`."""
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


class Facts(NamedTuple):
    """What a server says of one of its models."""

    model: str  # its id there
    context: int  # tokens; 0: not said
    names: tuple[str, ...] = ()  # under which its tokenizer may be on the shelf
    adapters: tuple[str, ...] = ()  # ids of LoRA adapters of this model
    vocab: int = 0  # 0: not said
    tokenizer_digest: str = ""  # `LanguageModel.tokenizer_digest`, where the server knows it
    eos: tuple[int, ...] = ()
    has_template: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as ids, and as the text that they stand for where a server takes no ids."""

    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One request for tokens.

    Attributes:
        model: Id on the server; an adapter's id for a LoRA.
        prompt: What is continued.
        max_tokens: At most so many.
        alternatives: Log-probabilities wanted per position; `FULL` for all.
        chosen: Ids whose values are wanted beside them.
        scored: Alternatives wanted of each token of the prompt; None scores nothing.
        options: Sampler and grammar, resolved; None is greedy.
        seed: Of the server's random numbers.
        eos: Ids that end the answer; None leaves it to the server.
        own_eos: The model's own end it too.
        salt: Of its cache.
        priority: Before which other requests it is read.
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
        """What the answer must look like."""
        return None if self.options is None else self.options.grammar


class Alternatives(NamedTuple):
    """Log-probabilities of one position: parallel lists, unsorted; keys are ids, or texts where the server has no ids."""

    keys: list[int] | list[str]
    logprobs: list[float]


class Piece(NamedTuple):
    """One token of an answer."""

    token: int | None  # None where the server returns no ids
    text: str
    logprob: float | None
    alternatives: Alternatives | None


class Scored(NamedTuple):
    """What is known at one token of a prompt, that token among others: parallel lists; rank 0 where it is not known."""

    ids: list[int]
    ranks: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of an answer, or a whole one."""

    pieces: Sequence[Piece] = ()  # its new tokens
    # "stop", "length" or another word of the server's on the last chunk; "eos" where its last token ended the answer by itself
    finish: str | None = None
    stopped_by: int | None = None  # the token id that ended it, where the server says so
    prompt: Sequence[Scored | None] | None = None  # scores of the prompt's tokens, None for the first
    prompt_tokens: int | None = None  # as the server counts; None where it says nothing
    cached_tokens: int | None = None  # of them, found in its cache
    # tokens of the answer so far; then `pieces` may begin with some that were told before, or lack some in front whose bytes
    # are in `text` alone
    generated: int | None = None
    text: str = ""  # theirs, without that of a token that ended the answer


@dataclass(frozen=True, slots=True)
class Probe:
    """What a server's pages for introspection said: parsed JSON by path; a page that is not there is missing."""

    pages: Mapping[str, Any] = field(default_factory=dict)

    @property
    def models(self) -> list[dict[str, Any]]:
        """The entries of ``/v1/models`` whose ids can be shown."""
        page = self.pages.get("/v1/models")
        listed = page.get("data") if isinstance(page, dict) else None
        entries = listed if isinstance(listed, list) else ()
        return [entry for entry in entries if isinstance(entry, dict) and _is_shown(entry.get("id"))]

    def version(self, path: str, name: str) -> str:
        """What a page says of the server's version, at most 40 characters; "" where that cannot be shown."""
        page = self.pages.get(path)
        said = page.get(name) if isinstance(page, dict) else None
        return said[:40] if _is_shown(said) else ""


def _is_shown(name: object) -> TypeGuard[str]:
    """Whether this is a name that a terminal shows as it is: of a line, without control characters."""
    return isinstance(name, str) and name.isprintable() and len(name) <= _MOST_NAME


class Dialect(Protocol):
    """How one kind of server is spoken to. Stateless; requests become JSON bodies, bodies become `Chunk`."""

    name: str
    pages: tuple[str, ...]  # that tell it apart, beside /v1/models
    checks_ids: bool  # refuses ids that it does not have
    exact_bytes: bool  # has `token_bytes`; others say the texts of tokens alone
    returns_eos: bool  # the token that ended an answer is among its tokens, and comes with the reason

    def recognise(self, probe: Probe) -> str | None:
        """The server's version ("" where it says none); None where it is another kind."""

    def facts(self, probe: Probe, model: str) -> Facts:
        """What is known of a model of ``/v1/models``."""

    async def abilities(self, client: HttpClient, facts: Facts, probe: Probe) -> Abilities:
        """What it can do, asked by real requests where it does not say; the server is ready when this returns."""

    def request(self, asked: Completion, abilities: Abilities, *, stream: bool) -> tuple[str, dict[str, Any]]:
        """Path and body."""

    def read(self, body: bytes, asked: Completion) -> Chunk:
        """An answer, or the data of one event of a stream.

        Raises:
            RemoteError: "protocol": It has another shape.
        """

    async def tokenize(self, client: HttpClient, model: str, text: str) -> list[int]:
        """Ids of a plain text, a BOS in front where the server puts one."""

    async def tokens_of(self, client: HttpClient, model: str, text: str) -> list[tuple[int, bytes | None]]:
        """The same with the bytes of each token; None where the server tells none."""

    async def detokenize(self, client: HttpClient, model: str, ids: Sequence[int]) -> str:
        """The text of ids."""

    async def token_bytes(self, client: HttpClient, model: str, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id."""

    async def render_chat(
        self,
        client: HttpClient,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        """Ids of a conversation."""

    async def embed(self, client: HttpClient, model: str, paths: Sequence[Prompt]) -> list[list[float]]:
        """A vector for each text."""


def malformed(what: str) -> RemoteError:
    """The error for an answer of another shape."""
    return RemoteError(f"the server's answer cannot be used: {what}", "protocol")


def finite(value: float, what: str = "a log-probability") -> float:
    """A log-probability: at most 0 but for rounding, and no NaN. Minus infinity is one, as servers clamp it.

    Raises:
        RemoteError: It is none.
    """
    if math.isnan(value) or value > 0.01:
        raise malformed(f"{what} is {value}")
    return min(value, 0.0)
