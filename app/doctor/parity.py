"""Numbers of this machine against stored float32 answers, and against themselves: cached, batched, restored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from app.doctor.finding import Finding, held
from app.doctor.reference import SMOLLM2, Answer, Float32, Reference, references, write_reference
from runtime import LanguageModel, ModelMissingError, RuntimeFault, list_models, load

BAR: Final = 1e-3  # nats; float32 on another device adds in another order
LAYER_BAR: Final = 1e-2  # above it a layer is named as the one that departs
ADVICE: Final = "do not trust this model's numbers on this backend; report it with this table"


def parity(backend: str) -> Iterator[Finding]:
    """A row for each architecture, then the default model."""
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        for reference in references():
            name = f"{backend} {reference.name} ({', '.join(kind for kind, _ in groupby(sorted(reference.kinds)))})"
            if reference.name == SMOLLM2:
                yield _shelf_model(backend, name, reference)
                continue
            folder = write_reference(Path(room) / reference.name, reference)
            try:
                with load(folder, backend) as model:
                    yield _compared(name, model, reference, Path(room))
            except RuntimeFault as fault:
                yield Finding(name, type(fault).__name__, "loads", "failed", str(fault))


def _shelf_model(backend: str, name: str, reference: Reference) -> Finding:
    found = next((entry for entry in list_models() if entry.name == SMOLLM2), None)
    if found is None or not found.complete or found.quantisation is not None:
        return Finding(name, "not here", "", "skipped", f"needs the model {SMOLLM2} in float32: elsewise models get {SMOLLM2}")
    try:
        with load(SMOLLM2, backend) as model, tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
            return _compared(name, model, reference, Path(room))
    except (RuntimeFault, ModelMissingError) as fault:
        return Finding(name, type(fault).__name__, "loads", "failed", str(fault))


def _compared(name: str, model: LanguageModel, reference: Reference, room: Path) -> Finding:
    """How far every way of computing the answers is off the stored ones."""
    text, answers = reference.text, reference.answers
    prefixes = [text[: answer.position + 1] for answer in answers]
    off = _worst([model.next_token_logprobs_uncached(prefix) for prefix in prefixes], answers)
    found = {"reference": off}
    model.clear_cache()
    found["cached"] = _worst([model.next_token_logprobs_sync(prefix) for prefix in prefixes], answers)
    model.clear_cache()
    strangers = [text[start : start + 30][::-1] for start in range(5)]
    found["batched"] = _worst(model.batch_next_token_logprobs_sync([*prefixes, *strangers])[: len(prefixes)], answers)
    file = room / "kv"
    model.kv.kv_snapshot(text, file)
    model.clear_cache()
    model.kv.kv_restore(file)
    found["restored"] = _worst([model.next_token_logprobs_sync(text)], answers[-1:])
    worst = max(found.values())
    advice = ADVICE if worst <= BAR else f"{_where(model, reference)}; {ADVICE}"
    shown = ", ".join(f"{way} {nats:.1e}" for way, nats in found.items())
    return held(name, worst, BAR, f"{shown} nats", f"<= {BAR:g} nats", advice)


def _worst(rows: list[Float32] | Float32, answers: list[Answer]) -> float:
    """The largest distance; infinite where a number is none."""
    off = [
        np.abs(row[answer.ids] - np.array(answer.logprobs, np.float32)).max() for row, answer in zip(rows, answers, strict=True)
    ]
    return float(np.nan_to_num(max(off), nan=np.inf))


def _where(model: LanguageModel, reference: Reference) -> str:
    """The first layer that departs from the stored ones, with its kind."""
    if not reference.layers:
        return "no layers are stored of this model"
    try:
        run = model.lens_sync(reference.text, tokens=reference.answers[-1].ids)
    except RuntimeFault as fault:
        return f"its layers cannot be read: {fault}"
    off = np.abs(run.logprobs[0, :, 1:] - np.array(reference.layers, np.float32)).max(axis=1)
    apart = np.flatnonzero(~(off <= LAYER_BAR))
    if not len(apart):
        return "every layer by itself is right with keys and values from the cache"
    layer = int(apart[0])
    return "the embedding departs" if layer == 0 else f"layer {layer} departs first: {reference.kinds[layer - 1]}"
