"""How an answer was made, in words: what the inspector shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that held, and who said so: call, session, preset, model or default."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Made:
    """One answer's making."""

    facts: Mapping[str, str]  # name and value: model, engine, seed, counts, times, its end
    settings: tuple[Setting, ...]  # every option; those that somebody chose first
