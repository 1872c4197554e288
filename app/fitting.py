"""The engines of this machine that can run a model, and the memory it needs on each."""

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
    """The memory a model needs on each installed engine that can run it, the preferred engine first.

    Args:
        config: ``config.json``.
        weights: Bytes on disk.
        dtype: Of most weights; "" takes it from the config.
        backends: The engines that can run it.
        context: Tokens; None for those of the options, or a usual number.
        options: Load options by the names of `LoadOptions`; other names are ignored.
        prefer: The preferred engine.
    """
    names = {field.name for field in fields(LoadOptions)}
    given = LoadOptions.from_mapping({name: value for name, value in (options or {}).items() if name in names})
    here = [name for name in backends if available_backends().get(name) is True]
    wanted = default_backend() if prefer == "auto" else prefer
    here.sort(key=lambda name: name != wanted)
    return [estimate_fit(config, weights, dtype=dtype, backend=name, context=context, options=given) for name in here]


def forms_under(backend: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The forms in which an engine can hold linear weights under some options; empty if it has no choice.

    Args:
        backend: Its name.
        options: By the names of `LoadOptions`; None and missing ones are the engine's choice.
    """
    free = options.get("dtype") in (None, "auto", "float32") and options.get("offload") in (None, "none")
    return weight_forms(backend, options.get("device") or "auto") if free else ()
