"""Checks that an adapter belongs to a model, and maps its products to the model's modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from runtime.adapters.adapter import ModuleShape
from runtime.adapters.layouts import AdapterHeader
from runtime.errors import AdapterError
from runtime.options.checking import nearest
from runtime.records import Float32

# Prefixes that libraries and wrapper classes put before the path of a module
_BODIES = ("base_model.", "language_model.", "model.", "transformer.", "backbone.")

# Words in a model's name about the form of its weights: precision, quantisation, library
_FORM = re.compile(
    r"(?:^| )(?:i?q[1-8](?: (?:k|[01]|xxs|xs|s|m|l|xl|nl))*|[1-8] ?bits?|int[48]|fp?(?:8|16|32)|bf16|b?float(?:16|32)"
    r"|mxfp4|nf4|dwq|awq|gptq|bnb|mlx|gguf|hf|quantized)(?= |$)"
)


def matched(header: AdapterHeader, targets: Mapping[str, ModuleShape]) -> AdapterHeader:
    """The header with its module paths replaced by the model's own.

    Args:
        header: The adapter's header.
        targets: Shapes of the model's linear modules, by path.

    Raises:
        AdapterError: The model lacks a module (the message has the nearest one), or has it in another shape.
    """
    by_core: dict[str, list[str]] = {}
    for target in targets:
        by_core.setdefault(core(target), []).append(target)
    modules = {}
    for path, pair in header.modules.items():
        found = [path] if path in targets else by_core.get(core(path), [])
        if len(found) != 1:
            raise AdapterError(
                f"{header.folder}: the model has no linear module {path!r}, which the adapter changes; it is for another base "
                f"({nearest(path, targets) if targets else 'the model has none that can take an adapter'})"
            )
        if targets[found[0]] != pair.shape:
            (has_in, has_out), (is_in, is_out) = targets[found[0]], pair.shape
            raise AdapterError(
                f"{header.folder}: {path} is {is_in:,} -> {is_out:,} in the adapter, {has_in:,} -> {has_out:,} in the model; "
                "the adapter is for another base"
            )
        modules[found[0]] = pair
    return replace(header, modules=modules)


def check_base(header: AdapterHeader, names: Sequence[str]) -> None:
    """Compares an adapter's named base with a model's names, ignoring the form of the weights.

    Owners, paths, revisions, case, punctuation and words such as "4bit", "mlx" or "gguf" are ignored. All other words must be
    equal: a chat model is not its base model, although all shapes agree.

    Args:
        header: The adapter's header.
        names: The model's names; if there are none, nothing is compared.

    Raises:
        AdapterError: The adapter names a different model.
    """
    asked = _plain(header.base)
    if asked and names and asked not in {_plain(name) for name in names}:
        raise AdapterError(
            f"{header.folder}: made for {header.base}, and this is {names[0]}; load that base model, or, if it is the same "
            "under another name, put that name into its adapter_config.json (or add the adapter with `any_base=True`)"
        )


def check_copy(path: str, copy: Float32, own: Float32 | None) -> None:
    """Compares an adapter's copy of a module's weights with the model's, to the precision of 16 bits.

    Raises:
        AdapterError: They differ, or the model's are quantised (`own` is None) and cannot be compared.
    """
    if own is None or not np.allclose(copy, own, rtol=1e-2, atol=1e-3):
        why = "this model's are quantised" if own is None else "they are not this model's"
        raise AdapterError(f"the adapter brings weights of its own for {path}, and {why}: it is for another base")


def core(path: str) -> str:
    """A module's path without the prefixes of libraries."""
    while prefix := next((body for body in _BODIES if path.startswith(body)), None):
        path = path.removeprefix(prefix)
    return path


def _plain(name: str) -> str:
    """The part of a model's name that identifies it, in lower case without separators."""
    last = Path(name.partition("@")[0].rstrip("/")).name.lower()
    words = re.sub(r"[^a-z0-9]+", " ", last)
    rest, before = words, ""
    while rest != before:
        before, rest = rest, _FORM.sub(" ", rest)
    return (rest if rest.strip() else words).replace(" ", "")
