"""Facts, counters and timings of a loaded model, as frozen snapshots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.adapters.uses import Adapters, Uses, check_adapters, digest_of_stack
from runtime.errors import AdapterError

Message = Mapping[str, Any]  # {"role": ..., "content": ...}, as chat templates take them

UNKNOWN_CONTEXT: Final = 1 << 20  # tokens, for a server that does not name its context; it refuses longer prompts itself


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """One registered adapter.

    Attributes:
        name: Its registered name.
        kind: "lora", or "alora" for an activated one.
        folder: Its folder.
        base: The base model named in its configuration; empty where it names none.
        rank: The largest rank of its modules.
        modules: The number of modules that it changes.
        parameters: The number of its weights.
        loaded: Whether its weights are in memory.
        bytes: The size of the loaded weights; 0 while they are not loaded.
        digest: SHA-256 of the loaded weights, under which its KV is filed.
        invocation: Ids whose last occurrence activates it; none for a plain adapter.
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
    """Facts about a model. `kv_fingerprint` identifies its KV, `model_fingerprint` its text and ids."""

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
    adapters: tuple[AdapterInfo, ...] = ()  # the registered ones; those that are loaded have `bytes`
    lora_stack: tuple[tuple[str, float], ...] = ()  # (name, scale) in force, in order
    stack_digest: str = ""  # digest of the stack's weights and scales, in order; empty for the base alone
    whole_context: int = 0  # the model's own context in tokens, also where it was loaded with a shorter one; 0: not known

    @property
    def told_context(self) -> int | None:
        """The context in tokens; None where a server does not report it and the caller chose none."""
        return None if self.context_length == UNKNOWN_CONTEXT and not self.whole_context else self.context_length

    @property
    def precision(self) -> str:
        """The precision of the model's numbers, for display: "float32", "float32, int8 weights", "float32, 4 bits, ..."."""
        return ", ".join(filter(None, (self.dtype, self.quantisation)))

    @property
    def computed_with(self) -> str:
        """The dtype, and the form of the weights where `LoadOptions.weights` changed it."""
        plain = self.options.get("weights") in (None, "auto", self.dtype)
        return self.dtype if plain else self.precision

    @property
    def numbers_fingerprint(self) -> str:
        """Identifies the numbers of requests that name no adapters: `kv_fingerprint`, combined with the stack if any."""
        return self._filed_under(self.stack_digest)

    def numbers_under(self, adapters: Adapters = None) -> str:
        """Identifies the numbers of requests that name these adapters; `numbers_fingerprint` for None.

        Raises:
            AdapterError: An adapter that is not registered or not loaded.
        """
        if adapters is None:
            return self.numbers_fingerprint
        return self._filed_under(digest_of_stack(self.uses_under(adapters)))

    def uses_under(self, adapters: Adapters = None) -> Uses:
        """The adapters that a request names, as `block_keys` takes them; the stack in force for None.

        Raises:
            AdapterError: An adapter that is not registered or not loaded.
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
    """The timings of one request, in seconds of monotonic time, and its tokens.

    Attributes:
        request: Its number, from 1 in the order of arrival; `PromptProgress.request` passes it to `on_progress`.
        kind: "generate", "score", "embed", or the name of a reading ("lens").
        finish: A generation's finish reason ("eos", "stop", "length", ...), "done", "cancelled" or "error".
        prompt_tokens: Tokens of the prompt, of the scored text, or of all texts to be embedded.
        generated_tokens: Drawn tokens, the last one included.
        reused: Prompt tokens found in the cache or computed for another request; None where a server does not count them.
        computed: Prompt tokens pushed through the model for this request; None as above.
        queue_seconds: From the call to the start of the request; None for a server's model.
        prefill_seconds: From the start to the end of the prefill, including forwards of other requests in between.
        first_token_seconds: From the call to the first token; None where no token was drawn.
        decode_seconds: From the first token to the end.
        total_seconds: From the call to the end.
        seed: The seed of a generation, also where the caller chose none; it reproduces the answer.
        drafted: Tokens drafted by speculation.
        accepted: Drafted tokens that the model drew as well.
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
        """The rate after the first token; None for fewer than two tokens."""
        return (self.generated_tokens - 1) / self.decode_seconds if self.generated_tokens > 1 and self.decode_seconds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted among drafted tokens; None without drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency over the last requests that had one (256 at most), in seconds; None before the first."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters since load; times in seconds.

    `tokens_computed` counts the tokens pushed through the model, including padding and the tokens of failed calls.
    """

    tokens_computed: int = 0
    tokens_reused: int = 0
    forward_calls: int = 0
    queries: int = 0
    queries_deduplicated: int = 0
    kv_bytes: int = 0
    kv_budget: int = 0
    kv_peak_bytes: int = 0  # peak under this budget, with transient copies; never above it
    kv_evicted_bytes: int = 0
    tokens_rescored: int = 0
    tokens_restored: int = 0  # from KV blocks, into memory
    blocks_saved: int = 0  # KV blocks written into the block file; `block_bytes_saved` has their bytes
    block_bytes_saved: int = 0
    texts_embedded: int = 0
    tokens_drafted: int = 0  # tokens drafted by speculation
    tokens_accepted: int = 0  # drafted tokens that the model drew as well
    full_vector_hits: int = 0
    first_token_seconds: float | None = None  # of the last generation
    tokens_per_second: float | None = None  # of the last generation, after its first token
    last_reused: int | None = 0  # of the last generation: prompt tokens found in the cache; None: not known of a server
    last_computed: int | None = 0  # of the last generation: prompt tokens pushed through the model; None as above
    grammar_tokens: int = 0  # drawn under a grammar, by generations that have ended
    grammar_seconds: float = 0.0  # processor time of masks and steps of grammars, most of it during forwards
    grammar_wait_seconds: float = 0.0  # time that draws waited for masks
    tokens_prefilled: int = 0  # the part of `tokens_computed` in prompts, queries and scored texts
    tokens_generated: int = 0  # tokens drawn, or chosen by beams
    prompt_tokens: int = 0  # prompt tokens of the requests that have ended
    prefill_seconds: float = 0.0  # of forwards over prompts
    decode_seconds: float = 0.0  # of steps of running generations and beam searches
    requests_started: int = 0  # generations, scores and embeddings; log-probability queries are counted in `queries`
    requests_completed: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    requests_active: int = 0  # at present, waiting ones included
    requests_waiting: int = 0  # at present: not begun yet, or waiting for other requests to end
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
        """Average since load; None before the first prompt."""
        return self.tokens_prefilled / self.prefill_seconds if self.prefill_seconds else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Average of all generations together since load; None before the first step."""
        return self.tokens_generated / self.decode_seconds if self.decode_seconds else None

    def request(self, number: int) -> RequestTimings | None:
        """The timings of an ended request by its number (`PromptProgress.request`); None where `recent` lacks it."""
        return next((timings for timings in reversed(self.recent) if timings.request == number), None)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted among drafted tokens; None without drafted tokens."""
        return self.tokens_accepted / self.tokens_drafted if self.tokens_drafted else None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of one request's prompt; the last one, with `done` equal to `total`, comes before the first token."""

    done: int  # tokens in place
    total: int  # tokens of the prompt
    reused: int | None  # of `done`: found in the cache, or computed by another request; None: not known of a server
    computed: int | None  # tokens pushed through the model for this request; None as above
    request: int = field(default=0, compare=False)  # its number; `Metrics.request` has its timings after its end


OnProgress = Callable[[PromptProgress], None]


@dataclass(frozen=True, slots=True)
class EdgeReport:
    """One edge of the trie: size, age on the logical clock of the trie, leases, last tokens."""

    tokens: int
    bytes: int
    age: int
    leases: int
    tail: tuple[int, ...]
    hits: int = 0  # lookups that passed through the edge
    stack: tuple[tuple[str, float], ...] = ()  # (`AdapterInfo.digest`, scale) of its adapters, in order


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
    last_prefix: int = 0  # tokens that the last request found in the trie
    last_reason: str = ""  # why the prefix ended there
    # the reason in a word: none, whole, new, evicted, cleared, refused, other, checkpoint, scores, off
    last_cause: str = "none"
    working_bytes: int = 0  # of workspaces, beside the trie's `bytes`
    vector_bytes: int = 0  # of cached next-token vectors
    pins: int = 0  # their leases are among `leases`


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The part of a token sequence that the engine holds.

    Attributes:
        tokens: Length of the longest prefix that needs no forward pass.
        tier: "warm" (all of the prefix is in memory), "disk" (its end is only in the block file) or "cold" (`tokens` is 0).
        warm: Leading tokens in memory where the tier is "disk"; otherwise None.
    """

    tokens: int
    tier: str
    warm: int | None = None

    @classmethod
    def of(cls, warm: int, tokens: int) -> PrefixMatch:
        """The match of `tokens` held tokens, of which the first `warm` are in memory."""
        if tokens > warm:
            return cls(tokens, "disk", warm)
        return cls(tokens, "warm" if tokens else "cold")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A pin and its extent.

    Attributes:
        pin: Its number.
        tokens: Pinned leading tokens of the path; fewer than the path has where not all of it was computed, or where all pins
            together would hold more than half of the KV budget.
    """

    pin: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BlocksSaved:
    """The result of `save_blocks`.

    Attributes:
        blocks: Blocks of the path, as far as its KV is in memory.
        written: Number of these blocks that were new to the block file.
        tokens: Leading tokens of the path that are now in the block file.
        bytes: Bytes written.
        seconds: Duration of the call; other requests ran meanwhile.
        engine_seconds: The part of `seconds` in which the owner thread did nothing else.
        no_room: Whether some blocks were not stored: the block file's budget is full of pinned blocks, or smaller than the
            path.
    """

    blocks: int
    written: int
    tokens: int
    bytes: int
    seconds: float
    engine_seconds: float
    no_room: bool = False
