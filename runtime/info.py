"""What is known of a loaded model, and what it has done: frozen snapshots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.adapters.uses import Adapters, Uses, check_adapters, digest_of_stack
from runtime.errors import AdapterError

Message = Mapping[str, Any]  # {"role": ..., "content": ...}, as chat templates take them


UNKNOWN_CONTEXT: Final = 1 << 20  # tokens, where a server does not say; it refuses what is too long


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """One registered adapter.

    Attributes:
        name: As it was registered.
        kind: "lora", or "alora" for an activated one.
        folder: Where it is.
        base: The model that it says it was made for; empty where it says nothing.
        rank: The largest of its modules.
        modules: How many it changes.
        parameters: Numbers in all.
        loaded: Whether its weights are in place.
        bytes: That they hold; 0 while they are not.
        digest: SHA-256 of its numbers, while they are in place: what the KV under it is filed by.
        invocation: Ids that activate it where they stand last; none for one that takes part from the first token on.
    """

    name: str
    kind: str
    folder: str
    base: str
    rank: int
    modules: int
    parameters: int
    loaded: bool
    bytes: int
    digest: str | None
    invocation: tuple[int, ...] = ()

    @property
    def qualified(self) -> str:
        """Name and kind: ``mine_lora``."""
        return f"{self.name}_{self.kind}"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a backend knows of its model. `kv_fingerprint` guards KV, `model_fingerprint` guards text and ids."""

    name: str
    backend: str
    device: str
    dtype: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    hidden_size: int
    vocab_size: int  # width of the logits
    parameters: int
    quantisation: str | None
    attention_kinds: tuple[str, ...]  # of: full, sliding, recurrent
    context_length: int  # tokens
    has_template: bool
    kv_bytes_per_token: int
    kv_fingerprint: str
    model_fingerprint: str
    options: dict[str, Any] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    template_digest: str | None = None  # SHA-256 of the chat template in force; None without one
    adapters: tuple[AdapterInfo, ...] = ()  # registered ones, with the bytes of those that are loaded
    lora_stack: tuple[tuple[str, float], ...] = ()  # (name, scale) in force, in order
    stack_digest: str = ""  # of its adapters' numbers and scales, in order; empty for the base alone
    whole_context: int = 0  # tokens that the model was made for, also where it was loaded with fewer; 0: not known

    @property
    def told_context(self) -> int | None:
        """The context in tokens; None where a server does not say it and none was chosen."""
        return None if self.context_length == UNKNOWN_CONTEXT and not self.whole_context else self.context_length

    @property
    def precision(self) -> str:
        """What its numbers are computed with, for people: "float32", "float32, int8 weights", "float32, 4 bits, ..."."""
        return ", ".join(filter(None, (self.dtype, self.quantisation)))

    @property
    def computed_with(self) -> str:
        """The dtype, and the form of the weights where `LoadOptions.weights` made it another: no part of the model itself."""
        plain = self.options.get("weights") in (None, "auto", self.dtype)
        return self.dtype if plain else self.precision

    @property
    def numbers_fingerprint(self) -> str:
        """What numbers of requests that name no adapters are filed under: the base's `kv_fingerprint`, or with the stack."""
        return self._filed_under(self.stack_digest)

    def numbers_under(self, adapters: Adapters = None) -> str:
        """What numbers of requests that name these adapters are filed under; `numbers_fingerprint` for None.

        Raises:
            AdapterError: One that is not registered, or that is not loaded.
        """
        if adapters is None:
            return self.numbers_fingerprint
        return self._filed_under(digest_of_stack(self.uses_under(adapters)))

    def uses_under(self, adapters: Adapters = None) -> Uses:
        """The adapters that a request names, as `block_keys` takes them; the stack in force for None.

        Raises:
            AdapterError: One that is not registered, or that is not loaded.
        """
        known = {name: adapter for adapter in self.adapters for name in (adapter.qualified, adapter.name)}
        found: list[tuple[str, float, tuple[int, ...]]] = []
        for name, scale in check_adapters(self.lora_stack if adapters is None else adapters):
            adapter = known.get(name)
            if adapter is None or adapter.digest is None:
                raise AdapterError(f"adapter {name!r} is not loaded; load_adapter brings its weights in")
            found.append((adapter.digest, scale, adapter.invocation))
        return tuple(found)

    def _filed_under(self, stack_digest: str) -> str:
        if not stack_digest:
            return self.kv_fingerprint
        return hashlib.sha256(f"{self.kv_fingerprint} {stack_digest}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """Where one request's time went; seconds of monotonic time, tokens.

    Attributes:
        request: Its number, counted from 1 in the order of arrival; `PromptProgress.request` says it to `on_progress`.
        kind: "generate", "score", "embed", or the name of a reading ("lens").
        finish: How it ended: a generation's finish reason ("eos", "stop", "length", ...), "done", "cancelled" or "error".
        prompt_tokens: Of the prompt, the scored text, or all texts to be embedded.
        generated_tokens: Drawn, the last one included.
        reused: Prompt tokens found in the cache or computed for another request; None where a server does not say.
        computed: Prompt tokens pushed through the model for this request; None as above.
        queue_seconds: From its call until it was begun; None of a server's.
        prefill_seconds: From there until its prompt was in place, with the turns of others in between.
        first_token_seconds: From its call to its first token; None where there was none.
        decode_seconds: From its first token to its end.
        total_seconds: From its call to its end.
        seed: Of a generation's random numbers, also where none was chosen: with it the same is drawn again.
        drafted: Tokens guessed ahead by speculative decoding.
        accepted: Of them, those that the model drew as well.
    """

    request: int
    kind: str
    finish: str
    prompt_tokens: int
    generated_tokens: int
    reused: int | None
    computed: int | None
    queue_seconds: float | None
    prefill_seconds: float
    first_token_seconds: float | None
    decode_seconds: float
    total_seconds: float
    seed: int | None = None
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; None for fewer than two."""
        return (self.generated_tokens - 1) / self.decode_seconds if self.generated_tokens > 1 and self.decode_seconds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted among drafted tokens; None where nothing was guessed."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class Latency:
    """Of the last requests that had one (256 at most), in seconds; None before the first."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters since load; times in seconds.

    `tokens_computed` counts what was pushed through the model: padding too, and what went into calls that failed.
    """

    tokens_computed: int = 0
    tokens_reused: int = 0
    forward_calls: int = 0
    queries: int = 0
    queries_deduplicated: int = 0
    kv_bytes: int = 0
    kv_budget: int = 0
    kv_peak_bytes: int = 0  # the most under this budget, moments of copying included; never above it
    kv_evicted_bytes: int = 0
    tokens_rescored: int = 0
    tokens_restored: int = 0  # of stored KV blocks, into memory
    blocks_saved: int = 0  # KV blocks that were written into the block file, and their bytes
    block_bytes_saved: int = 0
    texts_embedded: int = 0
    tokens_drafted: int = 0  # guessed by speculative decoding
    tokens_accepted: int = 0  # of them, those that the model drew as well
    full_vector_hits: int = 0
    first_token_seconds: float | None = None  # of the last generation
    tokens_per_second: float | None = None  # of the last generation, after its first token
    last_reused: int | None = 0  # of the last generation: prompt tokens found in the cache; None: a server that does not say
    last_computed: int | None = 0  # of the last generation: prompt tokens pushed through the model; None as above
    grammar_tokens: int = 0  # drawn under a grammar, by generations that have ended
    grammar_seconds: float = 0.0  # processor time of their masks and steps, most of it while the model computes
    grammar_wait_seconds: float = 0.0  # what their draws waited for masks
    tokens_prefilled: int = 0  # of `tokens_computed`: prompts, queries and scored texts
    tokens_generated: int = 0  # drawn, and chosen by the beams of searches
    prompt_tokens: int = 0  # of the requests that have ended
    prefill_seconds: float = 0.0  # of forwards over prompts
    decode_seconds: float = 0.0  # of steps of running generations and beam searches
    requests_started: int = 0  # generations, scores and embeddings; log-probability queries are counted in `queries`
    requests_completed: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    requests_active: int = 0  # now, those that wait included
    requests_waiting: int = 0  # now: not begun yet, or waiting for others to leave
    cache_hits: int = 0  # paths that found a prefix in the trie
    cache_misses: int = 0
    kv_evictions: int = 0  # segments
    queue_latency: Latency = field(default_factory=Latency)
    first_token_latency: Latency = field(default_factory=Latency)
    token_latency: Latency = field(default_factory=Latency)  # between two tokens of a generation
    recent: tuple[RequestTimings, ...] = ()  # the last 32 requests that ended, the latest last

    @property
    def cache_hit_rate(self) -> float | None:
        """Hits among all lookups; None before the first."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else None

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Over everything since load; None before the first prompt."""
        return self.tokens_prefilled / self.prefill_seconds if self.prefill_seconds else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Of all generations together, over everything since load; None before the first step."""
        return self.tokens_generated / self.decode_seconds if self.decode_seconds else None

    def request(self, number: int) -> RequestTimings | None:
        """The timings of a request by its number (`PromptProgress.request`), once it has ended, while it is recent."""
        return next((timings for timings in reversed(self.recent) if timings.request == number), None)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted among drafted tokens; None where nothing was speculated."""
        return self.tokens_accepted / self.tokens_drafted if self.tokens_drafted else None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far one request's prompt is; the last one, with `done` equal to `total`, comes before the first token."""

    done: int  # tokens in place
    total: int  # tokens of the prompt
    reused: int | None  # of `done`: found in the cache, or computed by another request; None: a server that has not said
    computed: int | None  # tokens pushed through the model for this request; None as above
    request: int = field(default=0, compare=False)  # its number; `Metrics.request` has its timings after its end


OnProgress = Callable[[PromptProgress], None]


@dataclass(frozen=True, slots=True)
class EdgeReport:
    """One edge of the trie: its last tokens, size, age on the logical clock, leases."""

    tokens: int
    bytes: int
    age: int
    leases: int
    tail: tuple[int, ...]
    hits: int = 0  # lookups that passed it
    stack: tuple[tuple[str, float], ...] = ()  # (`AdapterInfo.digest`, scale) of the adapters it was computed under, in order


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The trie at one moment."""

    edges: int
    tokens: int
    bytes: int
    leases: int
    leased_bytes: int
    budget: int
    hits: int
    misses: int
    largest: tuple[EdgeReport, ...] = ()
    last_prefix: int = 0  # tokens the last request found
    last_reason: str = ""  # why its prefix ended there
    last_cause: str = "none"  # the same in a word: none, whole, new, evicted, cleared, refused, other, checkpoint, scores, off
    working_bytes: int = 0  # of packs, beside the trie's `bytes`
    vector_bytes: int = 0  # of kept next-token vectors
    pins: int = 0  # paths that open sessions keep; their leases are among `leases`


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a token sequence the engine holds already.

    Attributes:
        tokens: Length of the longest prefix that needs no forward pass.
        tier: Where it is: "warm" (memory), "disk" (its end only in the block file) or "cold" (nowhere; `tokens` is 0).
        warm: Of `tokens`, the first so many are in memory; None: all, or none where it is cold.
    """

    tokens: int
    tier: str
    warm: int | None = None

    @classmethod
    def of(cls, warm: int, tokens: int) -> PrefixMatch:
        """`warm` tokens in memory, of `tokens` that are held."""
        if tokens > warm:
            return cls(tokens, "disk", warm)
        return cls(tokens, "warm" if tokens else "cold")


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a pin holds.

    Attributes:
        pin: Its number.
        tokens: Leading tokens of the path that stay in memory; fewer than the path where not all of it was computed, or
            where pins together would hold more than half of the KV budget.
    """

    pin: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BlocksSaved:
    """What `save_blocks` did.

    Attributes:
        blocks: Of the path, as far as its KV is in memory.
        written: Of them, those that were not in the block file yet.
        tokens: Leading tokens of the path that the block file holds now.
        bytes: Written.
        seconds: It took, while others went on.
        engine_seconds: Of them, those in which the owner thread did nothing else.
        no_room: Whether some of it was not kept: the block file's budget is full of what is pinned, or smaller than the path.
    """

    blocks: int
    written: int
    tokens: int
    bytes: int
    seconds: float
    engine_seconds: float
    no_room: bool = False
