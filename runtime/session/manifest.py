"""`Manifest`: everything other than the text that a session's ids and KV depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np

from runtime.adapters.adapter import AdapterKind
from runtime.adapters.stacks import Routing
from runtime.adapters.stacks import stack_of as stack_in
from runtime.adapters.uses import MOST_INVOCATION, Adapters, Uses, check_adapters
from runtime.errors import AdapterError, InvalidRequestError, ManifestMismatchError
from runtime.info import ModelInfo
from runtime.kv.chain import block_keys

_CONFIG = ("backend", "device", "dtype", "context_length")  # fields of `ModelInfo`
_OPTIONS = ("attention", "kv_dtype")  # of `ModelInfo.options`
_ACTIVATED: AdapterKind = "alora"


class AdapterOf(NamedTuple):
    """One adapter of a manifest.

    Attributes:
        name: `AdapterInfo.qualified`.
        scale: Its scale.
        digest: SHA-256 of its weights.
        invocation: Ids that activate the adapter; empty for a plain adapter, which acts from the first token on.
    """

    name: str
    scale: float
    digest: str
    invocation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterSpan:
    """Consecutive tokens ``ids[start:end]`` computed under the same adapters; without adapters under the base alone."""

    start: int
    end: int
    adapters: tuple[tuple[str, float], ...]  # (name, scale), in order


@dataclass(frozen=True, slots=True)
class Manifest:
    """Model, tokenizer and settings of a session. The same tokens give the same numbers under manifests of equal digest.

    Attributes:
        name: The model's name, for display; not in the digest.
        model: The KV fingerprint: weights, geometry, dtype, backend, form of the KV.
        tokenizer: SHA-256 of the bytes of every id.
        template: SHA-256 of the chat template in force; empty without one.
        bos: Whether a BOS precedes a text: "model" (the tokenizer decides), "yes" or "no".
        runtime: (name, value) of the settings that affect numbers.
        adapters: The adapters in force, in order.
    """

    name: str
    model: str
    tokenizer: str
    template: str
    bos: str
    runtime: tuple[tuple[str, str], ...] = ()
    adapters: tuple[AdapterOf, ...] = ()

    @classmethod
    def of(cls, info: ModelInfo, *, tokenizer: str, template: str | None, adapters: Adapters = None) -> Self:
        """The manifest of a loaded model.

        Args:
            info: The model's facts.
            tokenizer: See `tokenizer_digest`.
            template: The source of its chat template.
            adapters: The adapters of the requests; None: the stack in force.

        Raises:
            AdapterError: An adapter that is not loaded.
        """
        config = [(name, str(getattr(info, "computed_with" if name == "dtype" else name))) for name in _CONFIG]
        config += [(name, str(info.options.get(name, ""))) for name in _OPTIONS]
        return cls(
            name=info.name,
            model=info.kv_fingerprint,
            tokenizer=tokenizer,
            template="" if template is None else hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
            bos=str(info.options.get("add_bos", "model")),
            runtime=tuple(config),
            adapters=stack_of(info, adapters),
        )

    @classmethod
    def from_mapping(cls, stored: Mapping[str, Any]) -> Self:
        """A stored manifest, as `to_mapping` made it.

        Raises:
            InvalidRequestError: Not a manifest.
        """
        known = {field.name for field in fields(cls)}
        try:
            if set(stored) != known:
                raise ValueError(f"its fields are {', '.join(map(str, stored))}, not {', '.join(sorted(known))}")
            plain = {name: str(stored[name]) for name in ("name", "model", "tokenizer", "template", "bos")}
            adapters = tuple(_adapter(*use) for use in stored["adapters"])
            config = tuple((str(name), str(value)) for name, value in stored["runtime"])
            return cls(**plain, runtime=config, adapters=adapters)
        except (TypeError, ValueError) as mismatch:
            raise InvalidRequestError(f"this is no stored manifest: {mismatch}") from mismatch

    def to_mapping(self) -> dict[str, Any]:
        """Plain values, for JSON; a plain adapter has no fourth value."""
        return {**asdict(self), "adapters": [list(use if use.invocation else use[:3]) for use in self.adapters]}

    @property
    def stack(self) -> tuple[tuple[str, float], ...]:
        """(name, scale) of the adapters, as requests take them."""
        return tuple((use.name, use.scale) for use in self.adapters)

    def named_here(self, info: ModelInfo) -> Self:
        """The manifest with its adapters under the names that this model knows them by, found by their digests."""
        names = {each.digest: each.qualified for each in info.adapters if each.digest is not None}
        return replace(self, adapters=tuple(use._replace(name=names.get(use.digest, use.name)) for use in self.adapters))

    def block_keys(self, ids: Sequence[int], ends: Iterable[int] = ()) -> list[bytes]:
        """The names of the KV blocks of a path (see `runtime.block_keys`).

        Empty where the invocation of an activated adapter is not known, since earlier versions did not store it.
        """
        if any(use.name.endswith(f"_{_ACTIVATED}") and not use.invocation for use in self.adapters):
            return []
        return block_keys(self.model, ids, ends, self._uses)

    def spans(self, ids: Sequence[int]) -> tuple[AdapterSpan, ...]:
        """The adapters that each part of a path is computed under; one span where no adapter is activated on the way."""
        names = {use.digest: use.name for use in self.adapters}
        found: list[AdapterSpan] = []
        for namespace, part in Routing(self.model, self._uses).spans(np.asarray(ids, np.int32)):
            start = found[-1].end if found else 0
            under = tuple((names[digest], scale) for digest, scale in stack_in(namespace))
            found.append(AdapterSpan(start, start + len(part), under))
        return tuple(found)

    @property
    def _uses(self) -> Uses:
        return tuple((use.digest, use.scale, use.invocation) for use in self.adapters)

    @property
    def digest(self) -> str:
        """SHA-256 of all fields except the name, the same on every machine."""
        parts = {name: value for name, value in self.to_mapping().items() if name != "name"}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def differences(self, other: Manifest) -> list[str]:
        """The differing fields, each as "field: own value, other's value"."""
        found = []
        if self.model != other.model:
            found.append(f"model: {self.name} ({self.model[:12]}), {other.name} ({other.model[:12]})")
        for name in ("tokenizer", "template"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(f"{name}: {mine[:12] or 'none'}, {theirs[:12] or 'none'}")
        if self.bos != other.bos:
            found.append(f"add_bos: {self.bos}, {other.bos}")
        mine, theirs = dict(self.runtime), dict(other.runtime)
        changed = [name for name in dict.fromkeys((*mine, *theirs)) if mine.get(name) != theirs.get(name)]
        found += [f"{name}: {mine.get(name, 'none')}, {theirs.get(name, 'none')}" for name in changed]
        if self.adapters != other.adapters:
            found.append(f"adapters: {_stack(self.adapters)}, {_stack(other.adapters)}")
        return found

    def require(self, now: Manifest) -> None:
        """Refuses a manifest that differs from this one.

        Raises:
            ManifestMismatchError: The message has every difference, with both values.
        """
        found = self.differences(now)
        if found:
            raise ManifestMismatchError(
                f"the session was made with something else (then, now): {'; '.join(found)}. "
                "Bring that back, or open a new session and give it the text"
            )


def tokenizer_digest(byte_vocab: Sequence[bytes]) -> str:
    """SHA-256 of the bytes of every id, each with its length in front (32 bits, little-endian)."""
    digest = hashlib.sha256()
    digest.update(b"".join(len(piece).to_bytes(4, "little") + piece for piece in byte_vocab))
    return digest.hexdigest()


def stack_of(info: ModelInfo, adapters: Adapters) -> tuple[AdapterOf, ...]:
    """Adapters in the form of a manifest, in order; None: the stack in force.

    Raises:
        AdapterError: An adapter that is not loaded.
    """
    return tuple(_loaded(info, *use) for use in check_adapters(info.lora_stack if adapters is None else adapters))


def _loaded(info: ModelInfo, name: str, scale: float) -> AdapterOf:
    found = next((each for each in info.adapters if name in (each.name, each.qualified) and each.digest is not None), None)
    if found is None or found.digest is None:
        raise AdapterError(f"no adapter {name!r} is loaded; load_adapter({name!r}) before a session runs under it")
    return AdapterOf(found.qualified, scale, found.digest, found.invocation)


def _adapter(name: object, scale: Any, digest: object, invocation: object = ()) -> AdapterOf:
    """An adapter from its stored fields."""
    if not isinstance(invocation, list | tuple) or len(invocation) > MOST_INVOCATION:
        raise ValueError(f"what activates {name!r:.60} is a list of {MOST_INVOCATION:,} ids at most, not {invocation!r:.60}")
    if not all(type(token) is int and 0 <= token < 1 << 31 for token in invocation):
        raise ValueError(f"what activates {name!r:.60} should be ids, not {invocation!r:.60}")
    return AdapterOf(str(name), float(scale), str(digest), tuple(invocation))


def _stack(adapters: tuple[AdapterOf, ...]) -> str:
    return " + ".join(_shown(use) for use in adapters) or "none"


def _shown(use: AdapterOf) -> str:
    activated = f", activated by {' '.join(map(str, use.invocation))}" if use.invocation else ""
    return f"{use.name} x {use.scale:g} ({use.digest[:12]}{activated})"
