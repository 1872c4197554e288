"""Provenance of answers: stored as plain data, read back, and used to repeat them; in words see `provenance_text`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from app.workbench.setup.session_adapters import AdaptedModel, engine_name
from app.workbench.setup.values import DEFAULT, mapping_of
from runtime import BeamOptions, GenerationOptions, InvalidRequestError, TokenRun, __version__
from storage import NodeRow
from ui import AdapterChoice, translate

if TYPE_CHECKING:
    from app.workbench.setup.setups import Asked
    from runtime import ModelInfo, ResolvedOptions

Int32 = npt.NDArray[np.int32]
MADE = "made"  # key in the stats of a stored answer
REPEATED = "repeated"  # likewise: which answer it repeats, and where it differs
CHANGED = "changed"  # likewise: options that differ from those of the answer that it continues
CUT_SHORT = frozenset({"cancelled", "engine_died", "error", "app_ended"})  # finish reasons of answers that were cut off

_BEAMS = BeamOptions()
SEARCHED = "beams"  # the kind of an answer that a beam search found


def made_with(resolved: ResolvedOptions, adapted: AdaptedModel, asked: Asked, *, seed_was_chosen: bool) -> dict[str, Any]:
    """The provenance of a new answer: every option with its source, the seed, and the model."""
    info = adapted.model.info
    sources: dict[str, list[str]] = {}
    for name, source in resolved.sources.items():
        if source != DEFAULT and (name != "seed" or seed_was_chosen):
            sources.setdefault(source, []).append(name)
    return {
        "options": plain_options(resolved.options),
        "sources": sources,
        "model": info.name,
        "backend": info.backend,
        "device": info.device,
        "dtype": info.precision,
        "quantisation": info.quantisation,
        "fingerprint": adapted.fingerprint,
        "base": info.kv_fingerprint,
        "adapters": [list(use) for use in (info.lora_stack if adapted.adapters is None else adapted.adapters)],
        "stack": None if asked.adapters is None else [_kept(choice, info) for choice in asked.adapters if choice.on],
        "preset": asked.preset_name,
        "version": __version__,
    }


def found_with(options: BeamOptions, made: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of an answer that a beam search found.

    Args:
        options: The options of the search.
        made: The provenance of a drawn answer; the options that a search does not have are left out.
    """
    plain = {f.name: _plain(getattr(options, f.name)) for f in fields(options)}
    plain["grammar"] = None if options.grammar is None else asdict(options.grammar)
    taken = ("stop", "eos_token_ids", "ignore_eos", "grammar")
    sources = {source: kept for source, names in made["sources"].items() if (kept := [name for name in names if name in taken])}
    asked = [name for name in ("length_penalty", "early_stopping") if getattr(options, name) != getattr(_BEAMS, name)]
    sources["call"] = ["width", *asked, *sources.get("call", ())]
    return {**made, "kind": SEARCHED, "options": plain, "sources": sources}


def made_of(node: NodeRow) -> Mapping[str, Any]:
    """The stored provenance of an answer; empty if there is none."""
    return mapping_of(node.stats.get(MADE))


def beams_of(node: NodeRow) -> int:
    """The width of the beam search that found an answer; 0 for other answers."""
    width = node.stats.get("beams")
    return width if isinstance(width, int) else 0


def _kept(choice: AdapterChoice, info: ModelInfo) -> list[Any]:
    digest = next((held.digest for held in info.adapters if held.name == engine_name(choice)), None)
    return [choice.folder, choice.name, choice.scale, digest]


def plain_options(options: GenerationOptions) -> dict[str, Any]:
    """Every option as JSON values; `options_of` reads them back."""
    plain: dict[str, Any] = {f.name: _plain(getattr(options, f.name)) for f in fields(options) if f.name != "sampling"}
    plain["grammar"] = None if options.grammar is None else asdict(options.grammar)
    plain["speculative"] = None if options.speculative is None else asdict(options.speculative)
    return plain | {"sampling": {name: _plain(value) for name, value in options.sampling.given().items()}}


def options_of(made: Mapping[str, Any]) -> GenerationOptions:
    """The options an answer was made with.

    Raises:
        InvalidRequestError: This version cannot read them.
    """
    return GenerationOptions.from_mapping(made["options"])


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value


def next_branch(nodes: Iterable[NodeRow], seed: int | None) -> int:
    """The lowest branch number under a seed that no stored answer has: its random numbers are unused."""
    taken = (_branch_under(node, seed) for node in nodes)
    return max((branch + 1 for branch in taken if branch is not None), default=0)


def _branch_under(node: NodeRow, seed: int | None) -> int | None:
    made = node.stats.get(MADE)
    options = made.get("options") if isinstance(made, Mapping) else None
    said = options if isinstance(options, Mapping) else node.stats
    branch = said.get("branch", 0)
    return branch if seed is not None and said.get("seed") == seed and isinstance(branch, int) else None


# ---- once more --------------------------------------------------------------------------------------------------------


def stack_made_with(made: Mapping[str, Any]) -> tuple[AdapterChoice, ...] | None:
    """The session's adapter stack of an answer, maybe empty; None: the model's own stack was used."""
    stored = made.get("stack")
    if not isinstance(stored, list) or (not stored and made.get("adapters")):  # earlier versions stored both as []
        return None
    found = []
    for entry in stored:
        match entry:
            case [str(folder), str(name), (int() | float()) as scale, *_]:
                found.append(AdapterChoice(folder, name, float(scale)))
    return tuple(found)


class Repeat(Struct, frozen=True):
    """An answer to be repeated exactly."""

    of: int  # the node of the original
    made: Mapping[str, Any]  # its stored provenance; see `made_with`
    options: GenerationOptions  # the original's
    ids: Int32  # the original's generated tokens, ``(n,)``

    @classmethod
    def read(cls, node: NodeRow, run: TokenRun) -> Repeat:
        """Reads a stored answer that can be repeated (see `refusal`).

        Raises:
            InvalidRequestError: This version cannot read it.
        """
        made, count = node.stats[MADE], int(node.stats["generated"])
        try:
            options = options_of(made)
        except (KeyError, TypeError, ValueError) as fault:  # InvalidRequestError is one
            words = translate("Workbench", "this version cannot read how the answer was made ({0}); regenerate it")
            raise InvalidRequestError(words.format(fault)) from fault
        if not 0 < count <= len(run):
            words = translate("Workbench", "{0:,} tokens were generated but {1:,} are left; regenerate the answer instead")
            raise InvalidRequestError(words.format(count, len(run)))
        if node.finish_reason in CUT_SHORT:  # an answer that was cut off is compared as far as it was written
            options = replace(options, max_tokens=count)
        return cls(node.id, made, options, run.ids[len(run) - count :])

    def outcome(self, ids: Int32, *, ended: bool) -> dict[str, Any]:
        """The comparison that is stored with the repeated answer.

        Args:
            ids: The tokens generated this time, ``(m,)``.
            ended: Whether the repetition ended by itself; a stopped one is compared up to its last token.
        """
        same = min(len(ids), len(self.ids))
        differing = np.flatnonzero(ids[:same] != self.ids[:same])
        parts_at = int(differing[0]) if len(differing) else None
        if parts_at is None and ended and len(ids) != len(self.ids):
            parts_at = same
        return {"of": self.of, "parts_at": parts_at, "compared": same, "ended": ended or parts_at is not None}
