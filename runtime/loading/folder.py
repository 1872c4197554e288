"""A model that is ready to load: a checked folder of safetensors, config, tokenizer and template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder whose content was checked. Digests are SHA-256 hex of content, never of paths or times."""

    path: Path
    name: str  # what users see: "SmolLM2-135M-Instruct"
    config: Mapping[str, Any]  # config.json, normalised: rope in both spellings
    weights_digest: str  # weights and config
    text_digest: str  # tokenizer and chat template
    weights: tuple[Path, ...] = ()  # safetensors files, in the order of their names
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json, empty where there is none
    generation_config: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json, likewise
    chat_template: str | None = None  # source of the template; None for a base model
    quantisation: str | None = None  # "4 bit (mlx)", or None for plain weights
    warnings: tuple[str, ...] = ()  # what the user should know, for `ModelInfo.warnings`
