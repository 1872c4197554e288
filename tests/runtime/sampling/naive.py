"""Every stage written out over the whole vocabulary in float64 with full sorts: the reference for the sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.records import Float32

Float64 = npt.NDArray[np.float64]


def softmax(scores: Float64) -> Float64:
    if np.isneginf(scores).all():
        return np.zeros_like(scores)
    weights: Float64 = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights


def falling_order(scores: Float64) -> npt.NDArray[np.int64]:
    return np.lexsort((np.arange(len(scores)), -scores))


def without(scores: Float64, removed: npt.NDArray[Any]) -> Float64:
    changed = scores.copy()
    changed[removed] = -np.inf
    return changed


def naive_stage(name: str, scores: Float64, settings: dict[str, Any], history: list[int], xtc_u: float) -> Float64:
    """The scores after one stage; -inf for removed tokens."""
    order = falling_order(scores)
    probs = softmax(scores)
    match name:
        case "bias":
            scores = scores.copy()
            for token, bias in settings.get("logit_bias", {}).items():
                scores[token] += bias
            return without(scores, np.array(settings.get("banned_tokens", ()), int))
        case "temperature":
            heated: Float64 = scores / settings.get("temperature", 1.0)
            return heated
        case "top_k":
            k = settings.get("top_k", 0)
            return without(scores, order[k:]) if k else scores
        case "top_p":
            p = settings.get("top_p", 1.0)
            before = np.cumsum(probs[order]) - probs[order]
            return without(scores, order[before >= p]) if p < 1 else scores
        case "min_p":
            return without(scores, probs < settings.get("min_p", 0.0) * probs.max())
        case "typical":
            mass = settings.get("typical_p", 1.0)
            if mass >= 1:
                return scores
            with np.errstate(divide="ignore", invalid="ignore"):
                surprisal = -np.log(probs)
                entropy = float(np.nansum(np.where(probs > 0, probs * surprisal, 0)))
            far = np.abs(surprisal - entropy)
            nearest = np.argsort(far, kind="stable")
            last = min(int((np.cumsum(probs[nearest]) < mass).sum()), len(far) - 1)
            return without(scores, far > far[nearest[last]])
        case "xtc":
            if not xtc_u < settings.get("xtc_probability", 0.0):
                return scores
            top = probs[probs >= settings.get("xtc_threshold", 0.1)]
            return without(scores, probs > top.min()) if len(top) else scores
    raise AssertionError(name)


def naive_scores(
    order: tuple[str, ...], logprobs: Float32, settings: dict[str, Any], history: list[int], xtc_u: float
) -> Float64:
    """The scores from which the token is drawn."""
    scores = logprobs.astype(np.float64)
    for name in order:
        scores = naive_stage(name, scores, settings, history, xtc_u)
    return scores


def naive_draw(scores: Float64, u: float) -> tuple[int, float]:
    """The token, and the distance of u to the nearest border between it and another one."""
    order = falling_order(scores)
    edges = np.cumsum(softmax(scores)[order])
    edges /= edges[-1]
    place = min(int(np.searchsorted(edges, u, side="right")), len(order) - 1)
    return int(order[place]), float(np.min(np.abs(edges - u)))


def naive_dry(ids: list[int], multiplier: float, base: float, allowed: int, breakers: set[int]) -> dict[int, float]:
    """text-generation-webui's `DRYLogitsProcessor.__call__`, for one row: the penalty of each token."""
    last = ids[-1]
    if last in breakers:
        return {}
    lengths: dict[int, int] = {}
    for i in [i for i, token in enumerate(ids[:-1]) if token == last]:
        following = ids[i + 1]
        if following in breakers:
            continue
        length = 1
        while length < 50:
            j = i - length
            if j < 0:
                break
            previous = ids[-(length + 1)]
            if ids[j] != previous or previous in breakers:
                break
            length += 1
        lengths[following] = max(lengths.get(following, 0), length)
    return {token: multiplier * base ** (n - allowed) for token, n in lengths.items() if n >= allowed}
