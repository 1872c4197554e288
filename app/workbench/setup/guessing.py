"""Who guesses ahead, as far as the model that is loaded lets somebody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime import ModelInfo
from ui import Guess, translate


def guess_problem(guess: Guess, info: ModelInfo) -> str:
    """Why nobody can guess ahead like that for this model; "" where somebody can."""
    if guess is Guess.OFF:
        return ""
    if "recurrent" in info.attention_kinds:
        return translate(
            "Workbench", "{0} has recurrent state, which cannot be cut back: nobody can guess ahead for it"
        ).format(info.name)
    if guess is Guess.DRAFT and not info.options.get("draft_model"):
        return translate("Workbench", "no draft model is loaded: choose one in the settings; it holds after a reload")
    return ""


def guessed_by(layer: Mapping[str, Any], info: ModelInfo) -> Mapping[str, Any]:
    """A session's layer for this model: without its guesses where nobody can make them (the answer is the same)."""
    said = layer.get("speculative")
    if said is None or not guess_problem(Guess(said["method"]), info):
        return layer
    return {name: value for name, value in layer.items() if name != "speculative"}
