"""Which engines of this machine could run a model, and what it would take on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from runtime import Fit, LoadOptions, available_backends, default_backend, estimate_fit, weight_forms


def fits(
    config: Mapping[str, Any],
    weights: int,
    dtype: str,
    backends: tuple[str, ...],
    context: int | None,
    *,
    options: Mapping[str, Any] | None = None,
    prefer: str = "auto",
) -> list[Fit]:
    """For every engine that is here and can run it, the one that would be chosen first.

    Args:
        config: ``config.json``.
        weights: Bytes on disk.
        dtype: Of most of them; empty where only the config says.
        backends: That can run it.
        context: Tokens; None for those of the options, or a usual number.
        options: It would be loaded with, by the names of `LoadOptions`; other names are passed over.
        prefer: The engine that was asked for.
    """
    names = {field.name for field in fields(LoadOptions)}
    given = LoadOptions.from_mapping({name: value for name, value in (options or {}).items() if name in names})
    here = [name for name in backends if available_backends().get(name) is True]
    wanted = default_backend() if prefer == "auto" else prefer
    here.sort(key=lambda name: name != wanted)
    return [estimate_fit(config, weights, dtype=dtype, backend=name, context=context, options=given) for name in here]


def forms_under(backend: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """In which forms an engine can hold linear weights under some options; none where it has no choice.

    Args:
        backend: Its name.
        options: By the names of `LoadOptions`; None and what is not there leave it to the engine.
    """
    free = options.get("dtype") in (None, "auto", "float32") and options.get("offload") in (None, "none")
    return weight_forms(backend, options.get("device") or "auto") if free else ()
