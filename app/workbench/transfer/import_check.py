"""Reports the models of an imported session that never ran here, and whether a model of this machine can continue it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.workbench.prompt.vocabulary import fingerprints_that_ran
from app.workbench.refusals import intact
from runtime import InvalidRequestError, Manifest, list_models
from storage import SessionStore
from ui import QT_TRANSLATE_NOOP, translate

SHOWN: Final = 12  # characters of a fingerprint
WAYS: Final = QT_TRANSLATE_NOOP(
    "Workbench",
    "to continue with its exact tokens, choose that model in the model menu (or get it: `elsewise models get`); to continue "
    "with another one, send a message, then choose 'open as text' under it",
)


async def foreign_models(store: SessionStore, session_id: int) -> list[str]:
    """A sentence for every model that wrote in a session and never ran here.

    Models are told apart by fingerprint, which covers weights, precision, engine and tokenizer.
    """
    ran = await fingerprints_that_ran(store)
    here = {fingerprint: await intact(store.model(fingerprint)) or {} for fingerprint in ran}
    kinds = (await store.load_shape(session_id)).nodes.kinds
    wrote = dict.fromkeys(kind.kv_fingerprint for kind in kinds if kind.kv_fingerprint)
    strange = {fingerprint: await intact(store.model(fingerprint)) or {} for fingerprint in wrote if fingerprint not in here}
    return [_sentence(fingerprint, known, here) for fingerprint, known in strange.items()]


def _sentence(fingerprint: str, known: Mapping[str, Any], here: Mapping[str, Mapping[str, Any]]) -> str:
    name, digest = str(known.get("name", "")), known.get("vocabulary")
    if name:
        words = translate("Workbench", "the model {0!r}").format(name)
    else:
        words = translate("Workbench", "a model that the file does not name")
    its_print = translate("Workbench", "fingerprint {0}").format(fingerprint[:SHOWN])
    same = next((info for info in reversed([*here.values()]) if digest is not None and info.get("vocabulary") == digest), None)
    if same is not None:
        differs = _differences(known, same)
        return translate(
            "Workbench",
            "its tokens were made with {0} ({1}), which has not run here; {2!r} uses the same tokens and can continue. "
            "The numbers stay those of the other model, KV is computed again{3}",
        ).format(words, its_print, str(same.get("name")), f" ({differs})" if differs else "")
    ways = translate("Workbench", WAYS)
    if name and _on_the_shelf(name):
        return translate(
            "Workbench",
            "its tokens were made with {0} ({1}). A model of that name is on this machine; loading it shows whether it is "
            "the same. Until then the session opens with text and numbers; {2}",
        ).format(words, its_print, ways)
    return translate(
        "Workbench",
        "its tokens were made with {0}, which is not on this machine ({1}): the session opens with text and numbers; {2}",
    ).format(words, its_print, ways)


def _differences(known: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    try:
        then, now = (Manifest.from_mapping(info["manifest"]) for info in (known, here))
    except (KeyError, TypeError, InvalidRequestError):
        return ""
    return "; ".join(then.differences(now))


def _on_the_shelf(name: str) -> bool:
    titles = {words.lower() for entry in list_models() for words in (entry.name, entry.title)}
    return any(name.lower() in title or title in name.lower() for title in titles)
