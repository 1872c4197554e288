"""A model that is ready to load: a checked folder of safetensors, config, tokenizer and template; what libraries say of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.errors import ModelLoadError, RuntimeFault
from runtime.loading.config import shown, sizes


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


@contextmanager
def library_faults(folder: ModelFolder, library: str) -> Iterator[None]:
    """Turns whatever a library raises inside over a folder into a `ModelLoadError` that names the file and the field."""
    try:
        yield
    except RuntimeFault:
        raise
    except Exception as fault:
        words = " ".join(str(fault).split())[:_MOST_WORDS]
        said = f"{type(fault).__name__}: {words}" if words else type(fault).__name__
        found = _field_meant(folder.config, fault, words)
        if found is not None:
            name, value = found
            sides = sizes(folder.config)
            reason = f"{folder.path}/config.json: {name} is {shown(value)}, which {library} cannot use ({said}); {sides}"
        elif isinstance(fault, OSError | MemoryError | RuntimeError | ImportError):
            reason = f"{library} cannot load {folder.name}: {said}"
        else:
            kind = folder.config.get("model_type")
            sides = sizes(folder.config)
            reason = f"{folder.path}/config.json: {library} cannot make a {kind} of it ({said}); model_type {kind}, {sides}"
        raise ModelLoadError(reason) from fault


_MOST_WORDS = 300  # characters of a library's own message


def _field_meant(config: Mapping[str, Any], fault: Exception, words: str) -> tuple[str, Any] | None:
    """The field of a config that a library's error is about: one that it names, or whose value it looked up in vain."""
    fields = dict(_fields_of(config))
    if "Padding_idx" in words:  # torch's own name
        return "pad_token_id", config.get("pad_token_id")
    if "embed_dim" in words:
        return "n_head", config.get("n_head")
    if config.get("rope_scaling") and ("max_position_embeddings" in words or "rope_parameters" in words):
        return "rope_scaling", config["rope_scaling"]
    for word in re.findall(r"\w+", words):
        if word in fields and ("_" in word or word == "type"):
            return word, fields[word]
    if isinstance(fault, KeyError) and fault.args:
        return next(((name, value) for name, value in fields.items() if value == fault.args[0]), None)
    return None


def _fields_of(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _fields_of(value)
        elif isinstance(value, list):
            yield from ((name, item) for item in value if isinstance(item, str))
        yield name, value
