"""How a model's fit looks in a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from runtime import Fit

_WIDTH = 24  # of the bar


def fit_rows(found: list[Fit]) -> dict[str, str]:
    """A few rows for each."""
    rows: dict[str, str] = {}
    for fit in found:
        rows[f"fit ({fit.backend})"] = f"{bar(fit)} about {_gb(fit.total)} of {_gb(fit.memory)}, {_gb(fit.free)} free now"
        parts = f"engine {_gb(fit.libraries)}, weights {_gb(fit.weights)}, work {_gb(fit.working)}"
        moment = f", {_gb(fit.loading)} more while it is loaded" if fit.loading else ""
        rows[f"of it ({fit.backend})"] = f"{parts}, KV {_gb(fit.kv)} for {fit.context:,} tokens{moment}"
        if not fit.fits:
            way = (
                f"a context of {fit.longest:,} tokens fits"
                if fit.longest
                else "not even a short context fits: --offload disk (hf)"
            )
            rows[f"too large ({fit.backend})"] = way
    return rows


def fit_facts(found: list[Fit]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [asdict(fit) | {"total": fit.total, "fits": fit.fits} for fit in found]


def fit_word(fit: Fit) -> str:
    """Whether it fits, in a word or two."""
    return "fits" if fit.fits else f"{fit.longest:,} tokens fit" if fit.longest else "too large"


def bar(fit: Fit) -> str:
    """How much of the machine's memory it would take."""
    share = min(fit.total / fit.memory, 1.0) if fit.memory else 1.0
    full = max(round(share * _WIDTH), 1)
    return f"[{'#' * full}{'.' * (_WIDTH - full)}]"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size < 100e9 else f"{size / 1e9:,.0f} GB"
