"""Runs made by hand, among them the sentences of the drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from runtime import Finish, Origin, TokenRun
from ui.port import SessionView, Tier, TurnStats, TurnStatus, TurnView

LN2 = math.log(2)
BITS = {"": 0.2, "a": 1.0, "b": 2.2, "c": 4.0, "d": 6.5, "e": 9.0}
VOCABULARY = {900: b" Paris", 901: b" Rome", 902: b" Kyoto", 903: b" Prague", 904: b" a", 905: b" the"}

_WHERE = "Where=a| should| we| go| in=b| April=c|?"
_VISIT = (
    "You| could=a| visit=b| Lisbon=e| when=b| it| rains=c|:| the=a| trams=b| are| empty=d|,| the| tiles=a| shine=c|,"
    "| and| every=a| second=b| bakery=d| has| a| window=b| seat=c|."
)
_WHY = "Why| there=c|?"
_BECAUSE = "Because| the=b| city=a| is| built=c| for| slow=d| mornings=b"


def run_of(texts: Sequence[str], bits: Sequence[float | None], origin: Origin, first_id: int = 1) -> TokenRun:
    """Scored tokens with made-up alternatives; a token with None for its bits is unscored."""
    n = len(texts)
    logprob = np.array([np.nan if b is None else -b * LN2 for b in bits], np.float32)
    scored = np.array([b is not None for b in bits])
    ids = np.arange(first_id, first_id + n, dtype=np.int32)
    top_ids = np.tile(np.array([900, 901, 902, 903, 904, 905, -1], np.int32), (n, 1))
    top = np.log(np.array([0.412, 0.221, 0.061, 0.044, 0.032, 0.029, 1e-30], np.float32))
    rank = np.where(scored, np.where(logprob < -5, 12, 3), 0).astype(np.int32)
    return TokenRun(
        ids=ids,
        token_bytes=tuple(t.encode(errors="replace") for t in texts),
        texts=tuple(texts),
        logprob=logprob,
        rank=rank,
        entropy=np.array([np.nan if b is None else 0.4 + 0.35 * b for b in bits], np.float32),
        top_ids=top_ids,
        top_logprobs=np.tile(top, (n, 1)),
        covered_mass=np.where(scored, 0.978, np.nan).astype(np.float32),
        origin=np.full(n, int(origin), np.uint8),
        finish=np.zeros(n, np.uint8),
        draw=np.full(n, np.nan, np.float32),
    )


def written(line: str, origin: Origin = Origin.SAMPLED, first_id: int = 1) -> TokenRun:
    """Tokens written as `text=step|text|...` with the drawing's step letters."""
    cells = [cell.rpartition("=") if "=" in cell else (cell, "", "") for cell in line.split("|")]
    return run_of([c[0] for c in cells], [BITS[c[2]] for c in cells], origin, first_id)


def template(*texts: str) -> TokenRun:
    """Tokens that the chat template added."""
    return TokenRun.unscored([0] * len(texts), [t.encode() for t in texts], texts, Origin.TEMPLATE)


def ended(run: TokenRun) -> TokenRun:
    """The run and the end-of-sequence token that closed it."""
    end = run_of(["<|im_end|>"], [0.1], Origin.SAMPLED, 2)
    end.finish[0] = int(Finish.EOS)
    return TokenRun.concat([run, end])


def lisbon() -> TokenRun:
    """The drawing's answer; its pinned token has the drawing's alternatives."""
    run = written(_VISIT, first_id=100)
    at = 3
    run.top_ids[at] = [900, 901, int(run.ids[at]), 902, 903, 904, 905]
    run.top_logprobs[at] = np.log([0.412, 0.221, 0.098, 0.061, 0.044, 0.032, 0.029])
    run.logprob[at] = math.log(0.002)
    run.entropy[at] = 2.31 * LN2
    run.rank[at] = 3
    return run


def turn(
    node_id: int,
    role: str,
    run: TokenRun,
    *,
    status: TurnStatus = TurnStatus.COMPLETE,
    variants: tuple[int, ...] | None = None,
    tier: Tier = Tier.COLD,
    stats: TurnStats | None = None,
    note: str = "",
) -> TurnView:
    """A turn of the path."""
    return TurnView(node_id, role, run, status, variants or (node_id,), note, tier, stats)


def drawing() -> SessionView:
    """The session of the drawing."""
    asked = written(_WHERE, Origin.TYPED)
    stats = TurnStats(reused=312, computed=1, first_token_seconds=0.18, tokens_per_second=41.0, logprob=-23.9)
    return session(
        turn(1, "user", TokenRun.concat([template("<|im_start|>", "user", "\n"), asked]), tier=Tier.WARM),
        turn(2, "assistant", ended(lisbon()), variants=(20, 2, 22), tier=Tier.WARM, stats=stats),
        turn(3, "user", written(_WHY, Origin.TYPED, 50), tier=Tier.DISK),
        turn(4, "assistant", written(_BECAUSE, first_id=60), status=TurnStatus.STREAMING),
    )


def session(*turns: TurnView, session_id: int = 1) -> SessionView:
    """An open session with these turns."""
    return SessionView(session_id, "A spring trip", turns, ())


def resolve(ids: Sequence[int]) -> list[bytes]:
    """The bytes of the made-up alternatives."""
    return [VOCABULARY.get(int(i), b"") for i in ids]
