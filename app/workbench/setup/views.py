"""What a session is set to, and the model it is set for, as the window shows them."""

from __future__ import annotations

from app.workbench.setup.option_sources import source_words
from app.workbench.setup.values import OPTIONS, SessionValues
from runtime import ModelInfo, ResolvedOptions
from ui import ModelFacts, OptionView


def option_views(resolved: ResolvedOptions, values: SessionValues) -> list[OptionView]:
    """What holds of every option that a person sets, and who said so."""
    views = []
    for name in OPTIONS:
        inner = hasattr(resolved.options.sampling, name)
        value = getattr(resolved.options.sampling if inner else resolved.options, name)
        source = resolved.sources[f"sampling.{name}" if inner else name]
        views.append(OptionView(name, value, source_words(source), values.options.get(name)))
    return views


def facts_of(info: ModelInfo) -> ModelFacts:
    """The model that is loaded, in what a person asks about it."""
    return ModelFacts(
        name=info.name,
        fingerprint=info.model_fingerprint,
        architecture=info.architecture,
        parameters=info.parameters,
        backend=info.backend,
        device=info.device,
        dtype=info.precision,
        context_length=info.context_length,
        kv_bytes_per_token=info.kv_bytes_per_token,
        draft=str(info.options.get("draft_model") or ""),
        takes_roles=info.has_template,
        warnings=info.warnings,
    )
