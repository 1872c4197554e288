"""Compares log-probabilities of this machine with stored float32 answers, and the ways of computing them with each other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from app.doctor.bare import bare_logprobs
from app.doctor.finding import Finding, held
from app.doctor.reference import SMOLLM2, Float32, Reference, references, write_reference
from runtime import GenerationOptions, LanguageModel, RuntimeFault, SamplingOptions, list_models, load

BAR: Final = 1e-4  # nats, as in docs/tolerances.md; beyond it, the distance of the bare library calibrates the bar
CALIBRATED: Final = 2.0  # the bar, as a multiple of the bare library's distance
WIDEST: Final = 1e-3  # nats; the bar is never wider
DRAWN: Final = 6  # tokens
GREEDY: Final = SamplingOptions(temperature=0.0)
LAYER_BAR: Final = 1e-2  # nats; a layer that is further off is named
ADVICE: Final = "do not trust this model's numbers on this backend; report it with this table"


def parity(backend: str) -> Iterator[Finding]:
    """Yields a row for each architecture, then one for the default model."""
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        for reference in references():
            name = f"{backend} {reference.name} ({', '.join(kind for kind, _ in groupby(sorted(reference.kinds)))})"
            source: Path | str
            if reference.name == SMOLLM2:
                here = next((entry for entry in list_models() if entry.name == SMOLLM2 and entry.complete), None)
                if here is None or here.quantisation is not None:
                    advice = f"needs the model {SMOLLM2} in float32: elsewise models get {SMOLLM2}"
                    yield Finding(name, "not here", "", "skipped", advice)
                    continue
                source, folder = SMOLLM2, here.path
            else:
                source = folder = write_reference(Path(room) / reference.name, reference)
            try:
                with load(source, backend) as model:
                    yield _compared(name, model, folder, reference)
            except RuntimeFault as fault:
                yield Finding(name, type(fault).__name__, "loads", "failed", str(fault))


def _compared(name: str, model: LanguageModel, folder: Path, reference: Reference) -> Finding:
    """The distance of uncached answers from the stored ones, and of each other way of computing from a simpler one."""
    text, answers = reference.text, reference.answers
    prefixes = [text[: answer.position + 1] for answer in answers]
    plain = [model.next_token_logprobs_uncached(prefix) for prefix in prefixes]
    model.clear_cache()
    cached = [model.next_token_logprobs_sync(prefix) for prefix in prefixes]
    model.clear_cache()
    strangers = [text[start : start + 30][::-1] for start in range(5)]
    batched = model.batch_next_token_logprobs_sync([*prefixes, *strangers])[: len(prefixes)]
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        model.kv.kv_snapshot(text, Path(room) / "kv")
        model.clear_cache()
        model.kv.kv_restore(Path(room) / "kv")
    restored = model.next_token_logprobs_sync(text)
    model.clear_cache()
    run = model.score_run_sync(text)  # on a GPU scored there: only the likeliest entries are copied to the CPU
    after = {answer.position + 1: row for answer, row in zip(answers, plain, strict=True) if answer.position + 1 < len(text)}
    scored = [np.append(run.top_logprobs[at], run.logprob[at]) for at in after]
    alone = [row[np.append(run.top_ids[at], text[at])] for at, row in after.items()]
    drawn = list(model.generate_sync(text, GenerationOptions(max_tokens=DRAWN, sampling=GREEDY, ignore_eos=True)))  # likewise
    path = [*text, *(record.token_id for record in drawn)]
    rows = [model.next_token_logprobs_sync(path[:at]) for at in range(len(text), len(path))]
    stored = [np.array(answer.logprobs, np.float32) for answer in answers]
    found = {
        "reference": _apart([row[answer.ids] for row, answer in zip(plain, answers, strict=True)], stored),
        "cached from uncached": _apart(cached, plain),
        "batched from alone": _apart(batched, cached),
        "restored from fresh": _apart([restored], cached[-1:]),
        "scored from alone": _apart(scored, alone),
        "drawn from alone": _apart(
            [np.array(record.top_logprobs, np.float32) for record in drawn],
            [row[list(record.top_ids)] for row, record in zip(rows, drawn, strict=True)],
        ),
    }
    worst, bar = max(found.values()), BAR
    if BAR < worst <= WIDEST:
        theirs = bare_logprobs(model.info.backend, folder, text)
        off = _apart([theirs[answer.position, answer.ids] for answer in answers], stored)
        bar = min(max(BAR, CALIBRATED * off), WIDEST)
    advice = ADVICE if worst <= bar else f"{_where(model, reference)}; {ADVICE}"
    shown = ", ".join(f"{way} {nats:.1e}" for way, nats in found.items())
    return held(name, worst, bar, f"{shown} nats", f"<= {bar:.2g} nats", advice)


def _apart(rows: Sequence[Float32] | Float32, others: Sequence[Float32]) -> float:
    """The largest absolute difference; infinity if it is not a number."""
    off = np.max([np.abs(row - other).max() for row, other in zip(rows, others, strict=True)])  # `max` may pass over a NaN
    return float(np.nan_to_num(off, nan=np.inf))


def _where(model: LanguageModel, reference: Reference) -> str:
    """Names the first layer whose predictions differ from the stored ones, with its kind."""
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
