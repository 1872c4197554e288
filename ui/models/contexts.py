"""Contexts to choose from: round numbers of tokens, those that fit marked off from those that do not."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from ui.numbers import count
from ui.port import FitView

LEAST_CONTEXT = 1024  # tokens


def contexts(fit: FitView, most: int | None) -> list[tuple[str, int]]:
    """What each is called, and its tokens, rising: powers of two, the model's own, that of the fit, and the longest that fits.

    Args:
        fit: Says what fits.
        most: Tokens that the model was made for.
    """
    top = most or fit.context
    sizes = {fit.context, top}
    tokens = LEAST_CONTEXT
    while tokens < top:
        sizes.add(tokens)
        tokens *= 2
    whole = fit.longest // LEAST_CONTEXT * LEAST_CONTEXT
    if LEAST_CONTEXT <= whole < top:
        sizes.add(whole)
    return [(context_words(tokens, fit.longest), tokens) for tokens in sorted(sizes)]


def context_words(tokens: int, longest: int) -> str:
    """One of them."""
    name = QCoreApplication.translate("Models", "{0} tokens").format(count(tokens))
    return name if tokens <= longest else QCoreApplication.translate("Models", "{0}: too many").format(name)
