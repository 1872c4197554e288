"""What requests took: of each one, and of the last ones together."""

from __future__ import annotations

from dataclasses import dataclass


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
        seed: Of a generation's random numbers, also where nobody chose it: with it the same is drawn again.
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
