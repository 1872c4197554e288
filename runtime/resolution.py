"""Who decides: the call, then the session, a preset, the model's own generation_config.json, and the defaults last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from runtime.errors import InvalidRequestError
from runtime.options import GenerationOptions
from runtime.sampling.settings import DEFAULTS, STAGE_OF, SamplingOptions
from runtime.spellings import read_options

Layer = GenerationOptions | Mapping[str, Any] | None
DEFAULT_MAX_TOKENS: Final = 512
_PLAIN = GenerationOptions()


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """What holds, and who said so.

    Attributes:
        options: Every setting of `sampling` is set, and `max_tokens`; the seed stays None where nobody chose one.
        sources: "call", "session", "preset", "model" or "default" by field; a setting of the sampler is
            "sampling.temperature".
    """

    options: GenerationOptions
    sources: dict[str, str]


def resolve_options(call: Layer = None, *, session: Layer = None, preset: Layer = None, model: Layer = None) -> ResolvedOptions:
    """The options that hold, field by field from the first layer that has one.

    Args:
        call: What this request asks for. With ``resolve=False`` in it nobody but the call and the defaults has a say.
        session: What its session is set to.
        preset: What the application is set to.
        model: The model's own; a `LanguageModel`'s `resolve_options` fills it in.

    A layer is a mapping (see `GenerationOptions.from_mapping`), in which a field is set if it is there, or options, in which
    a field is set if it differs from its default.

    Raises:
        InvalidRequestError: An unknown name, a value out of range, or settings that contradict each other.
    """
    layers = {"call": _given(call), "session": _given(session), "preset": _given(preset), "model": _given(model)}
    if layers["call"].get("resolve") is False:
        layers = {"call": layers["call"]}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, default in _DEFAULTS.items():
        values[name], sources[name] = next(
            ((layer[name], who) for who, layer in layers.items() if name in layer), (default, "default")
        )
    sampling = {name.removeprefix(_PREFIX): values.pop(name) for name in list(values) if name.startswith(_PREFIX)}
    if sampling["order"] is not None:
        sampling["order"] = tuple(sampling["order"])
    made = replace(_PLAIN, **values, sampling=_without_what_is_off(SamplingOptions(**sampling), sources))
    return ResolvedOptions(made.check(), sources)


_PREFIX = "sampling."
_DEFAULTS = {
    **{f.name: getattr(_PLAIN, f.name) for f in fields(GenerationOptions) if f.name != "sampling"},
    "max_tokens": DEFAULT_MAX_TOKENS,
    **{_PREFIX + name: value for name, value in DEFAULTS.items()},
}


def _without_what_is_off(sampling: SamplingOptions, sources: dict[str, str]) -> SamplingOptions:
    """Settings of stages that another layer's `order` leaves out are off, which is no contradiction."""
    assert sampling.order is not None  # the defaults have one
    decided = sources[_PREFIX + "order"]
    off = {
        name: DEFAULTS[name]
        for name, stage in STAGE_OF.items()
        if stage not in sampling.order and sources[_PREFIX + name] != decided
    }
    for name in off:
        sources[_PREFIX + name] = decided
    return replace(sampling, **off)


def _given(layer: Layer) -> dict[str, Any]:
    """The fields that a layer sets."""
    if layer is None:
        return {}
    if isinstance(layer, GenerationOptions):
        found = {f.name: getattr(layer, f.name) for f in fields(layer) if getattr(layer, f.name) != getattr(_PLAIN, f.name)}
    elif isinstance(layer, Mapping):
        found = read_options(layer)
        GenerationOptions(**found).check()
    else:
        raise InvalidRequestError(f"options are GenerationOptions or a mapping, not {layer!r:.80}")
    sampling = found.pop("sampling", None)
    return {**found, **({_PREFIX + name: value for name, value in sampling.given().items()} if sampling else {})}
