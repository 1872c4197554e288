"""The provenance of an answer in words, and the reason why it cannot be repeated exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.workbench.answers.provenance import MADE, REPEATED, beams_of, stack_made_with
from app.workbench.setup.session_adapters import AdaptedModel
from app.workbench.setup.values import DEFAULT, mapping_of, named_options, source_words, stored_sources
from runtime import LanguageModel
from storage import NodeRow
from ui import QT_TRANSLATE_NOOP, Made, ResolvedOption, translate

NOT_KNOWN = QT_TRANSLATE_NOOP("Workbench", "the settings of this answer were not stored; regenerate it instead")
FOUND = QT_TRANSLATE_NOOP(
    "Workbench", "this answer was found by a beam search, which draws nothing; ask for beams at the same place to find it again"
)
NOTHING_MADE = QT_TRANSLATE_NOOP(
    "Workbench", "there is nothing to repeat: the model said nothing here; regenerate the answer instead"
)
ENDS = {  # the reason why an answer ended, by its stored name
    "eos": QT_TRANSLATE_NOOP("Workbench", "the model's end token"),
    "stop": QT_TRANSLATE_NOOP("Workbench", "a stop text"),
    "length": QT_TRANSLATE_NOOP("Workbench", "the length limit"),
    "context": QT_TRANSLATE_NOOP("Workbench", "the end of the context"),
    "cancelled": QT_TRANSLATE_NOOP("Workbench", "Stop"),
    "grammar": QT_TRANSLATE_NOOP("Workbench", "the end of its output format"),
    "error": QT_TRANSLATE_NOOP("Workbench", "an error"),
    "engine_died": QT_TRANSLATE_NOOP("Workbench", "a stop of the engine"),
    "stop_inside": QT_TRANSLATE_NOOP("Workbench", "a stop text, before its output format was complete"),
    "app_ended": QT_TRANSLATE_NOOP("Workbench", "a stop of Elsewise"),
    "edited": QT_TRANSLATE_NOOP("Workbench", "an edit"),
}


def refusal(node: NodeRow, adapted: AdaptedModel | LanguageModel | None = None) -> str:
    """Why an answer cannot be repeated exactly; "" if it can."""
    if beams_of(node):
        return translate("Workbench", FOUND)
    made = node.stats.get(MADE)
    if not isinstance(made, Mapping):
        return translate("Workbench", NOT_KNOWN)
    if not node.stats.get("generated"):
        return translate("Workbench", NOTHING_MADE)
    stack = made.get("stack")
    uses = stack if isinstance(stack, list) else []
    strange = [use[1] for use in uses if isinstance(use, list) and len(use) > 1 and use[0] is None]
    if strange:
        words = translate("Workbench", "this imported answer was made with {0}: add that adapter and regenerate it")
        return words.format(str(strange[0])[:80])
    return "" if adapted is None else _another(made, adapted)


def _another(made: Mapping[str, Any], adapted: AdaptedModel | LanguageModel) -> str:
    """How the current model differs from the one that made an answer; "" if it is the same."""
    model = adapted.model if isinstance(adapted, AdaptedModel) else adapted
    numbers = adapted.fingerprint if isinstance(adapted, AdaptedModel) else model.info.numbers_fingerprint
    if numbers == made.get("fingerprint"):
        return ""
    same_base = model.info.kv_fingerprint == made.get("base")
    if stack_made_with(made) is not None and same_base:  # its adapters can be loaded
        changed = translate(
            "Workbench",
            "an adapter of this answer has changed since; restore the old one, or regenerate it",
        )
        return changed if isinstance(adapted, AdaptedModel) else ""
    if same_base:
        was, now = stack_words(made.get("adapters")), stack_words(model.info.lora_stack)
        return translate("Workbench", "this answer was made with {0}, now it would be {1}").format(was, now)
    name, engine = made.get("model"), made.get("backend")
    if (name, engine) == (model.info.name, model.info.backend):
        words = translate("Workbench", "this answer was made by {0} with other weights or another precision than it has now")
        return words.format(name)
    words = translate("Workbench", "this answer was made by {0} on {1}, not by {2} on {3}; choose that one first")
    return words.format(name, engine, model.info.name, model.info.backend)


def stack_words(adapters: Any) -> str:
    """Adapters (pairs of name and scale) in words."""
    uses = []
    for use in adapters if isinstance(adapters, list | tuple) else ():
        match use:
            case [str(name), (int() | float()) as scale]:
                uses.append(f"{name} × {scale:g}")
    if not uses:
        return translate("Workbench", "no adapters")
    return translate("Workbench", "the adapters {0}").format(", ".join(uses))


def repeat_note(stats: Mapping[str, Any]) -> str:
    """How a repeated answer compares with its original; "" for other answers."""
    outcome = stats.get(REPEATED)
    if not isinstance(outcome, Mapping):
        return ""
    at, compared = outcome.get("parts_at"), outcome.get("compared")
    if isinstance(at, int):
        return translate("Workbench", "differs from the original from token {0:,} on").format(at + 1)
    if outcome.get("ended"):
        return translate("Workbench", "the same, token for token")
    return translate("Workbench", "the same for {0:,} tokens").format(compared if isinstance(compared, int) else 0)


def how_made(node: NodeRow) -> Made | None:
    """The provenance of an answer for the window; None if it was not stored."""
    made, stats = node.stats.get(MADE), node.stats
    if not isinstance(made, Mapping):
        return None
    options = mapping_of(made.get("options"))
    sources = stored_sources(made)
    named = named_options(options).items()
    shown = [(n.removeprefix("sampling."), words(v), sources.get(n, DEFAULT)) for n, v in named]
    shown.sort(key=lambda setting: setting[2] == DEFAULT)
    seed = "{0}" if "seed" in sources else translate("Workbench", "{0} (drawn)")
    found = translate("Workbench", "a beam search of {0} beams").format(beams_of(node))
    facts = {
        translate("Workbench", "model"): str(made.get("model")),
        translate("Workbench", "engine"): " · ".join(str(made[n]) for n in ("backend", "device", "dtype") if made.get(n)),
        translate("Workbench", "fingerprint"): str(made.get("fingerprint"))[:12],
        translate("Workbench", "adapters"): stack_words(made.get("adapters")) if made.get("adapters") else "",
        translate("Workbench", "found by"): found if beams_of(node) else "",
        translate("Workbench", "score"): f"{stats['score']:.4f}" if isinstance(stats.get("score"), float) else "",
        translate("Workbench", "seed"): "" if beams_of(node) else seed.format(options.get("seed")),
        translate("Workbench", "prompt"): _tokens(stats.get("prompt")),
        translate("Workbench", "generated"): _tokens(stats.get("generated")),
        translate("Workbench", "drafted"): _guesses(stats.get("drafted"), stats.get("accepted")),
        translate("Workbench", "reused"): _tokens(stats.get("reused")),
        translate("Workbench", "computed"): _tokens(stats.get("computed")),
        translate("Workbench", "first token after"): _seconds(stats.get("first_token_seconds")),
        translate("Workbench", "decoded in"): _seconds(stats.get("decode_seconds")),
        translate("Workbench", "ended by"): _ended_by(str(node.finish_reason or "")),
        translate("Workbench", "repeats"): repeat_note(stats),
    }
    settings = tuple(ResolvedOption(name, value, source_words(source)) for name, value, source in shown)
    return Made({name: words for name, words in facts.items() if words}, settings)


def words(value: Any) -> str:
    """A stored value in words."""
    match value:
        case None:
            return translate("Workbench", "none")
        case bool():
            return translate("Workbench", "yes") if value else translate("Workbench", "no")
        case float():
            return f"{value:g}"
        case {"kind": kind, "source": source}:
            return f"{kind} {source}"
        case Mapping():
            return ", ".join(f"{key}: {words(item)}" for key, item in value.items()) or translate("Workbench", "none")
        case list():
            return ", ".join(map(words, value)) or translate("Workbench", "none")
    return str(value)


def _ended_by(reason: str) -> str:
    return translate("Workbench", ENDS[reason]) if reason in ENDS else reason


def _tokens(count: Any) -> str:
    if not isinstance(count, int):
        return ""
    return translate("Workbench", "1 token") if count == 1 else translate("Workbench", "{0:,} tokens").format(count)


def _guesses(drafted: Any, accepted: Any) -> str:
    if not (isinstance(drafted, int) and isinstance(accepted, int) and drafted > 0):
        return _tokens(drafted)
    kept = translate("Workbench", "{0}, {1:,} accepted ({2} %)")
    return kept.format(_tokens(drafted), accepted, 100 * accepted // drafted)


def _seconds(seconds: Any) -> str:
    return translate("Workbench", "{0:.2f} s").format(seconds) if isinstance(seconds, float) else ""
