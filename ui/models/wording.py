"""Facts of models and downloads in words."""

from __future__ import annotations

from datetime import date

from ui.port import FitView, ShelfModel, translate
from ui.widgets.numbers import count, size

FINGERPRINT_SHOWN = 12  # hexadecimal digits


def rate_words(rate: float) -> str:
    """A download rate in bytes per second."""
    return f"{size(rate)}/s"


def time_left(seconds: float | None) -> str:
    """The remaining time in words; "" if unknown."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return translate("Models", "{0} h {1} min left").format(hours, minutes)
    if minutes:
        return translate("Models", "{0} min {1} s left").format(minutes, rest)
    return translate("Models", "{0} s left").format(rest)


def used_words(last_used: float | None, now: float) -> str:
    """When a model was last used; "" if unknown."""
    if last_used is None:
        return ""
    days = (date.fromtimestamp(now) - date.fromtimestamp(last_used)).days
    if days <= 0:
        return translate("Models", "used today")
    return translate("Models", "used yesterday") if days == 1 else translate("Models", "used {0:,} days ago").format(days)


def facts_of(model: ShelfModel, now: float) -> str:
    """The facts of a model, in one line."""
    parts = (
        model.name if model.name != model.title else "",
        model.form,
        translate("Models", "{0} tokens").format(count(model.context)) if model.context else "",
        translate("Models", "runs on {0}").format(", ".join(model.engines)) if model.engines else "",
        used_words(model.last_used, now),
        model.fingerprint[:FINGERPRINT_SHOWN],
        translate("Models", "opens with {0}").format(model.own_load) if model.own_load else "",
    )
    return " · ".join(part for part in parts if part)


def fit_words(fit: FitView) -> str:
    """Whether a model fits, the memory it needs, and the alternatives if it does not fit."""
    words = translate("Models", "about {0} of this machine's {1}, {2} free now")
    share = words.format(size(fit.total), size(fit.memory), size(fit.free))
    if fit.fits:
        return translate("Models", "fits with {0} tokens: {1}").format(count(fit.context), share)
    if fit.longest:
        way = translate("Models", "{0} tokens fit").format(count(fit.longest))
    else:
        way = translate("Models", "even a short context does not fit; it runs slowly with weights on disk (Settings > Engine)")
    return translate("Models", "does not fit with {0} tokens: {1}; {2}").format(count(fit.context), share, way)
