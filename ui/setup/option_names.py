"""What the options of a session are called, and what they do."""

from __future__ import annotations

from ui.port import QT_TRANSLATE_NOOP

LABELS = {
    "temperature": (
        QT_TRANSLATE_NOOP("Options", "temperature"),
        QT_TRANSLATE_NOOP("Options", "0 always takes the likeliest token"),
    ),
    "top_k": (
        QT_TRANSLATE_NOOP("Options", "top-k"),
        QT_TRANSLATE_NOOP("Options", "only the k likeliest; 0 is off"),
    ),
    "top_p": (
        QT_TRANSLATE_NOOP("Options", "top-p"),
        QT_TRANSLATE_NOOP("Options", "the likeliest that together reach this probability; 1 is off"),
    ),
    "min_p": (
        QT_TRANSLATE_NOOP("Options", "min-p"),
        QT_TRANSLATE_NOOP("Options", "only those with this share of the likeliest one's probability; 0 is off"),
    ),
    "typical_p": (
        QT_TRANSLATE_NOOP("Options", "typical"),
        QT_TRANSLATE_NOOP("Options", "those whose surprise is nearest to the entropy; 1 is off"),
    ),
    "xtc_probability": (
        QT_TRANSLATE_NOOP("Options", "XTC"),
        QT_TRANSLATE_NOOP("Options", "how often all top choices but the last go; 0 is off"),
    ),
    "repetition_penalty": (
        QT_TRANSLATE_NOOP("Options", "repetition"),
        QT_TRANSLATE_NOOP("Options", "makes what occurred less likely; 1 is off"),
    ),
    "presence_penalty": (
        QT_TRANSLATE_NOOP("Options", "presence"),
        QT_TRANSLATE_NOOP("Options", "is subtracted from what occurred; 0 is off"),
    ),
    "frequency_penalty": (
        QT_TRANSLATE_NOOP("Options", "frequency"),
        QT_TRANSLATE_NOOP("Options", "is subtracted once for each occurrence; 0 is off"),
    ),
    "dry_multiplier": (
        QT_TRANSLATE_NOOP("Options", "DRY"),
        QT_TRANSLATE_NOOP("Options", "makes long repetitions less likely; 0 is off"),
    ),
    "max_tokens": (
        QT_TRANSLATE_NOOP("Options", "longest answer"),
        QT_TRANSLATE_NOOP("Options", "tokens"),
    ),
    "stop": (
        QT_TRANSLATE_NOOP("Options", "stop at"),
        QT_TRANSLATE_NOOP("Options", 'texts that end an answer, such as "\\n\\n", "User:"'),
    ),
    "seed": (
        QT_TRANSLATE_NOOP("Options", "seed"),
        QT_TRANSLATE_NOOP(
            "Options",
            "the same seed draws the same answer, but where the model's page says otherwise; empty: a fresh one each time",
        ),
    ),
}
MORE = {  # folded away until they are wanted, or said by the session
    "order": (
        QT_TRANSLATE_NOOP("Options", "order of stages"),
        QT_TRANSLATE_NOOP("Options", "their names from the raw scores to the draw; a stage that is left out does nothing"),
    ),
    "logit_bias": (
        QT_TRANSLATE_NOOP("Options", "bias"),
        QT_TRANSLATE_NOOP(
            "Options", 'is added to the scores of tokens, such as " rain": -5, or by id, 36413: -5; spaces in front count'
        ),
    ),
    "banned_tokens": (
        QT_TRANSLATE_NOOP("Options", "never drawn"),
        QT_TRANSLATE_NOOP("Options", 'tokens, such as " rain", "Rain", or their ids, 36413; spaces in front count'),
    ),
    "xtc_threshold": (
        QT_TRANSLATE_NOOP("Options", "XTC from"),
        QT_TRANSLATE_NOOP("Options", "the probability from which XTC counts a token as a top choice"),
    ),
    "penalty_window": (
        QT_TRANSLATE_NOOP("Options", "penalties look at"),
        QT_TRANSLATE_NOOP("Options", "so many last tokens; 0 is all"),
    ),
    "dry_base": (
        QT_TRANSLATE_NOOP("Options", "DRY growth"),
        QT_TRANSLATE_NOOP("Options", "per token of what is repeated"),
    ),
    "dry_allowed_length": (
        QT_TRANSLATE_NOOP("Options", "DRY allows"),
        QT_TRANSLATE_NOOP("Options", "repetitions shorter than so many tokens cost nothing"),
    ),
    "dry_range": (
        QT_TRANSLATE_NOOP("Options", "DRY looks at"),
        QT_TRANSLATE_NOOP("Options", "so many last tokens; 0 is all"),
    ),
    "dry_breakers": (
        QT_TRANSLATE_NOOP("Options", "DRY breakers"),
        QT_TRANSLATE_NOOP("Options", 'no repetition goes across them: texts such as "\\n", ":", or token ids'),
    ),
}
