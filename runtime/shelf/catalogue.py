"""The catalogue: a list of chat models, part of the package, from which Elsewise proposes some. Needs no network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from runtime.backends.registry import default_backend
from runtime.errors import ModelLoadError
from runtime.loading.config import context_of, describe
from runtime.loading.memory_estimate import Fit, estimate_fit

SHA256 = "6fa03493adabb017e376570217ae1e4fd30cb284ccb49259662327ce539b698c"  # of the catalogue's file
_COMFORT = 0.6  # share of the memory that a proposal may take; the rest is for a longer context and other programs
_SMALLER = 0.7  # largest ratio of a proposal's parameters to those of the proposal before it
_GROUP = 64  # numbers that share a scale in the quantised repositories


@dataclass(frozen=True, slots=True)
class CatalogueVariant:
    """One repository of a model.

    Attributes:
        source: ``ORG/NAME``, as `fetch_model` takes it; the fetch pins the commit.
        bytes: Bytes of its weights, estimated from its configuration; `plan_download` has the exact number.
        gated: Whether a logged-in user may have to accept its licence on its page first.
        bits: Bits per weight of a repository quantised for MLX; None for bfloat16.
        config: The part of its ``config.json`` that `estimate_fit` reads.
    """

    source: str
    bytes: int
    gated: bool
    bits: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that can run it, of "hf" and "mlx"."""
        return describe(self.config).backends


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """One model.

    Attributes:
        name: The name shown to users.
        parameters: The number of its parameters.
        licence: The name of its licence.
        good_for: Its use, as a short phrase.
        variants: Its repositories, the plain one first.
    """

    name: str
    parameters: int
    licence: str
    good_for: str
    variants: tuple[CatalogueVariant, ...]

    @property
    def source(self) -> str:
        return self.variants[0].source

    @property
    def context(self) -> int:
        """Context length in tokens."""
        return context_of(self.variants[0].config) or 0

    def variant(self, backend: str | None = None) -> CatalogueVariant:
        """The smallest variant for a backend ("hf" or "mlx"; this machine's own by default); for mlx it is a quantised one."""
        wanted = backend or default_backend()
        able = [variant for variant in self.variants if wanted in variant.backends]
        return min(able or self.variants, key=lambda variant: variant.bytes)

    def fit(self, backend: str | None = None, context: int | None = None) -> Fit:
        """Estimates the memory of the backend's `variant`, without the network.

        Args:
            backend: "hf" or "mlx"; this machine's own by default.
            context: Tokens; by default the model's own length, up to `runtime.loading.memory_estimate.CONTEXT`.
        """
        wanted = backend or default_backend()
        chosen = self.variant(wanted)
        weights = min(chosen.bytes, 2 * self.parameters)  # some files store a tied matrix twice
        return estimate_fit(chosen.config, weights, backend=wanted, context=context)


@cache
def catalogue() -> tuple[CatalogueModel, ...]:
    """All models of the catalogue, the smallest first.

    Raises:
        ModelLoadError: The file is missing or changed.
    """
    file = resources.files("resources") / "catalogue" / "models.json"
    try:
        data = file.read_bytes()
    except OSError as fault:
        raise ModelLoadError(f"the catalogue of models cannot be read ({fault.strerror}); install Elsewise again") from fault
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise ModelLoadError(
            f"the catalogue of models was changed (its SHA-256 is {found[:12]}, not {SHA256[:12]}); install Elsewise again"
        )
    return tuple(_model(entry) for entry in msgspec.json.decode(data)["models"])


def fitting(count: int, backend: str | None = None) -> tuple[CatalogueModel, ...]:
    """Models to propose on this machine: the largest that fits comfortably, then clearly smaller ones.

    Gated models are left out. If no model fits comfortably, only the smallest is proposed.

    Args:
        count: The largest number of models.
        backend: "hf" or "mlx"; this machine's own by default.

    Raises:
        ModelLoadError: As `catalogue`.
    """
    free = [model for model in catalogue() if not model.variant(backend).gated]
    chosen: list[CatalogueModel] = []
    for model in reversed(free):
        fit = model.fit(backend)
        smaller = not chosen or model.parameters <= _SMALLER * chosen[-1].parameters
        if len(chosen) < count and smaller and fit.total <= _COMFORT * fit.memory:
            chosen.append(model)
    return tuple(chosen or free[:1])[:count]


def _model(entry: dict[str, Any]) -> CatalogueModel:
    config = entry.pop("config")
    variants = tuple(_variant(fields, config) for fields in entry.pop("variants"))
    return CatalogueModel(**entry, variants=variants)


def _variant(fields: dict[str, Any], config: Mapping[str, Any]) -> CatalogueVariant:
    packed = {"quantization": {"bits": fields["bits"], "group_size": _GROUP}} if "bits" in fields else {}
    return CatalogueVariant(**fields, config={**config, **packed})
