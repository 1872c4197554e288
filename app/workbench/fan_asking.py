"""What several continuations of one place are asked for with."""

from __future__ import annotations

from collections.abc import Sequence

from app.workbench.fan import Fan
from runtime import BeamOptions, GenerationOptions, LanguageModel, Origin, TokenRun, texts_of

SEARCHED_TOKENS = 32  # of one beam at most; the one that is kept can go on


def beams_as(asked: GenerationOptions, fan: Fan) -> BeamOptions:
    """The search for what may stand there: in the form of the session's answers, ended by what ends those."""
    return BeamOptions(
        width=fan.wanted,
        length_penalty=fan.rules.length_penalty,
        early_stopping=fan.rules.early_stopping,
        max_tokens=SEARCHED_TOKENS,
        eos_token_ids=asked.eos_token_ids,  # those of the chat format among them; None beside a form
        ignore_eos=asked.ignore_eos,
        stop=asked.stop,
        grammar=asked.grammar,
        grammar_prefix=0 if asked.grammar is None else said(fan),
    )


def said(fan: Fan) -> int:
    """Tokens of the answer that stand in front of the place, without the template's."""
    own = 0
    for segment in reversed(fan.segments()):
        run = fan.session.segment_run(segment)
        own += int((run.origin != int(Origin.TEMPLATE)).sum())
        if segment.node.turn_start:
            break
    return own


def spelt(model: LanguageModel, ids: Sequence[int]) -> TokenRun:
    """Ids as a run without numbers."""
    data = [b"" if model.is_eos(token) else model.decode_token(token) for token in ids]
    return TokenRun.unscored(ids, data, texts_of(data), Origin.SAMPLED)
