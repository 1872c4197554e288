"""One turn of a conversation: its tokens, where it stands, where its KV is, what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runtime import TokenRun
from ui.port.setup import ToolCard


class TurnStatus(StrEnum):
    """Where a turn stands."""

    COMPLETE = "complete"
    WAITING = "waiting"  # saved, the engine has not answered yet (starting, or reading the prompt)
    STREAMING = "streaming"
    PARTIAL = "partial"  # stopped, cut by a limit, or the engine died: the text is kept
    DAMAGED = "damaged"  # the stored rows fail their checksum


class Tier(StrEnum):
    """Where the turn's KV is."""

    WARM = "warm"
    DISK = "disk"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class TurnStats:
    """How an answer was made. Seconds; nats; tokens."""

    reused: int | None  # prompt tokens found in the cache; None where nothing of the prompt was read
    computed: int | None  # prompt tokens pushed through the model; None likewise
    first_token_seconds: float | None  # from when the engine was there to be asked
    tokens_per_second: float | None
    logprob: float | None  # of the generated tokens together
    drafted: int | None = None  # tokens guessed ahead; None where nobody guessed, or nobody counted
    accepted: int | None = None  # of them, those that the model drew as well


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn of the path that is shown."""

    node_id: int  # the turn's last node on this path: what `branch`, `regenerate` and `edit` refer to
    role: str  # system, user, assistant, tool
    run: TokenRun  # all its tokens along the path; the template's have origin TEMPLATE
    status: TurnStatus
    variants: tuple[int, ...]  # last nodes of the turn's siblings, in order; this turn's own is among them
    note: str = ""  # inline message, such as "stopped" or what failed and what to do
    tier: Tier = Tier.COLD
    stats: TurnStats | None = None
    can_repeat: bool = False  # how it was made is known: it can be made again exactly
    can_retry: bool = True  # False: the same again can only fail again; the note says what to do instead
    overflowed: bool = False  # it never began: its question did not fit, and the next message takes the place of that one
    is_foreign: bool = False  # it failed since the path has another tokenizer's tokens, and the model is that one still
    needs_model: bool = False  # it failed since its model could not be loaded, and no other one was chosen since
    calls: tuple[ToolCard, ...] = ()  # of tools, that nobody has answered yet
    called: tuple[ToolCard, ...] = ()  # of tools, that the next turn answers
    may_call: bool = False  # it is being written, and tools are offered

    @property
    def variant(self) -> int:
        """Which of the variants this is, from 0."""
        return self.variants.index(self.node_id)
