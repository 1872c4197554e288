"""How an answer was made: stored with it as plain data, read back, told in words, and made again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from app.workbench.naming import DEFAULT, named_options, stored_sources
from app.workbench.setup.adapters import engine_name
from app.workbench.speaker import Speaker
from runtime import BeamOptions, GenerationOptions, InvalidRequestError, LanguageModel, TokenRun, __version__
from storage import NodeRow
from ui import AdapterChoice, Made, Setting

if TYPE_CHECKING:
    from app.workbench.setup.setups import Asked
    from runtime import ModelInfo, ResolvedOptions

Int32 = npt.NDArray[np.int32]
MADE = "made"  # in a stored answer's stats
REPEATED = "repeated"  # there too: which answer it repeats, and where it parts from it
CHANGED = "changed"  # there too: what it does not have of the answer that it goes on with
CUT_SHORT = frozenset({"cancelled", "engine_died", "error", "app_ended"})  # ends that the model did not come to by itself

NOT_KNOWN = "how this answer was made was not stored yet when it was written; regenerate it instead"
_BEAMS = BeamOptions()
SEARCHED = "beams"  # the kind of what a beam search found
FOUND = "this answer was found by a beam search, nothing was drawn; ask for beams at its place, and it is found again"
NOTHING_MADE = "there is nothing to repeat: the model said nothing here; regenerate the answer instead"


def made_with(resolved: ResolvedOptions, speaker: Speaker, asked: Asked, *, seed_was_chosen: bool) -> dict[str, Any]:
    """What is stored of an answer at its beginning: every option that holds and who said so, the seed, and of which model."""
    info = speaker.model.info
    sources: dict[str, list[str]] = {}
    for name, who in resolved.sources.items():
        if name == "seed" and not seed_was_chosen:
            who = DEFAULT
        if who != DEFAULT:
            sources.setdefault(who, []).append(name)
    return {
        "options": plain_options(resolved.options),
        "sources": sources,
        "model": info.name,
        "backend": info.backend,
        "device": info.device,
        "dtype": info.precision,
        "quantisation": info.quantisation,
        "fingerprint": speaker.numbers,
        "base": info.kv_fingerprint,
        "adapters": [list(use) for use in (info.lora_stack if speaker.adapters is None else speaker.adapters)],
        "stack": None if asked.adapters is None else [_kept(choice, info) for choice in asked.adapters if choice.on],
        "preset": asked.preset_name,
        "version": __version__,
    }


def found_with(options: BeamOptions, made: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of what a beam search found.

    Args:
        options: The search's.
        made: What `made_with` says of the session's answers; of its options only those hold that a search has.
    """
    plain = {f.name: _plain(getattr(options, f.name)) for f in fields(options)}
    plain["grammar"] = None if options.grammar is None else asdict(options.grammar)
    taken = ("stop", "eos_token_ids", "ignore_eos", "grammar")
    sources = {who: kept for who, names in made["sources"].items() if (kept := [name for name in names if name in taken])}
    asked = [name for name in ("length_penalty", "early_stopping") if getattr(options, name) != getattr(_BEAMS, name)]
    sources["call"] = ["width", *asked, *sources.get("call", ())]
    return {**made, "kind": SEARCHED, "options": plain, "sources": sources}


def beams_of(node: NodeRow) -> int:
    """How many beams the search had that found an answer; 0 where none did."""
    width = node.stats.get("beams")
    return width if isinstance(width, int) else 0


def _kept(choice: AdapterChoice, info: ModelInfo) -> list[Any]:
    digest = next((held.digest for held in info.adapters if held.name == engine_name(choice)), None)
    return [choice.folder, choice.name, choice.scale, digest]


def plain_options(options: GenerationOptions) -> dict[str, Any]:
    """Every field as JSON has it; see `options_of`."""
    plain: dict[str, Any] = {f.name: _plain(getattr(options, f.name)) for f in fields(options) if f.name != "sampling"}
    plain["grammar"] = None if options.grammar is None else asdict(options.grammar)
    plain["speculative"] = None if options.speculative is None else asdict(options.speculative)
    return plain | {"sampling": {name: _plain(value) for name, value in options.sampling.given().items()}}


def options_of(made: Mapping[str, Any]) -> GenerationOptions:
    """The options an answer was made with.

    Raises:
        InvalidRequestError: They are not what this version knows.
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
    """The first number of a branch that no stored answer was drawn with under a seed: its draws are none of theirs."""
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
    """The adapters that a session had on its stack for an answer, none at all too; None: it left that to the model."""
    stored = made.get("stack")
    if not isinstance(stored, list) or (not stored and made.get("adapters")):  # earlier versions stored both as []
        return None
    found = []
    for entry in stored:
        match entry:
            case [str(folder), str(name), (int() | float()) as scale, *_]:
                found.append(AdapterChoice(folder, name, float(scale)))
    return tuple(found)


def refusal(node: NodeRow, speaker: Speaker | LanguageModel | None = None) -> str:
    """Why an answer cannot be made again exactly; empty where it can."""
    if beams_of(node):
        return FOUND
    made = node.stats.get(MADE)
    if not isinstance(made, Mapping):
        return NOT_KNOWN
    if not node.stats.get("generated"):
        return NOTHING_MADE
    strange = [use[1] for use in made.get("stack") or () if isinstance(use, list) and len(use) > 1 and use[0] is None]
    if strange:
        return f"this answer came from elsewhere, and was made with {strange[0]!s:.80}: put that adapter on, and regenerate it"
    if speaker is None:
        return ""
    model = speaker.model if isinstance(speaker, Speaker) else speaker
    numbers = speaker.numbers if isinstance(speaker, Speaker) else model.info.numbers_fingerprint
    if numbers == made.get("fingerprint"):
        return ""
    if stack_made_with(made) is not None and model.info.kv_fingerprint == made.get("base"):  # its adapters can be brought in
        changed = "an adapter that this answer was made with is another one now; put the old one back, or regenerate it"
        return changed if isinstance(speaker, Speaker) else ""
    name, engine = made.get("model"), made.get("backend")
    if model.info.kv_fingerprint == made.get("base"):
        was, now = stack_words(made.get("adapters")), stack_words(model.info.lora_stack)
        return f"this answer was made with {was}, now it would be {now}"
    if (name, engine) == (model.info.name, model.info.backend):
        return f"this answer was made by {name} with other weights or another precision than it has now"
    return (
        f"this answer was made by {name} on {engine}, not by {model.info.name} on {model.info.backend}; choose that one first"
    )


def stack_words(adapters: Any) -> str:
    """The adapters that were in force, each a name and a scale."""
    uses = [f"{name} × {scale:g}" for name, scale in adapters or ()]
    return f"the adapters {', '.join(uses)}" if uses else "no adapters"


@dataclass(frozen=True, slots=True)
class Repeat:
    """An answer that is made once more.

    Attributes:
        of: The node of the original.
        made: What is stored of it; see `made_with`.
        options: Those it was made with.
        ids: The tokens that the model made of it, ``(n,)``.
        cut_short: Whether it was stopped, or the engine died: it is compared as far as it was written.
    """

    of: int
    made: Mapping[str, Any]
    options: GenerationOptions
    ids: Int32
    cut_short: bool

    @classmethod
    def read(cls, node: NodeRow, run: TokenRun) -> Repeat:
        """What the store says of an answer that can be repeated (see `refusal`), and its run.

        Raises:
            InvalidRequestError: It is not what this version knows.
        """
        made, count = node.stats[MADE], int(node.stats["generated"])
        cut_short = node.finish_reason in CUT_SHORT
        try:
            options = options_of(made)
        except (KeyError, TypeError, ValueError) as fault:  # InvalidRequestError is one
            raise InvalidRequestError(f"this version cannot read how the answer was made ({fault}); regenerate it") from fault
        if not 0 < count <= len(run):
            raise InvalidRequestError(f"{count:,} tokens were made, {len(run):,} are there; regenerate the answer instead")
        if cut_short:
            options = replace(options, max_tokens=count)
        return cls(node.id, made, options, run.ids[len(run) - count :], cut_short)

    def outcome(self, ids: Int32, *, ended: bool) -> dict[str, Any]:
        """What is stored with the repeated answer.

        Args:
            ids: The tokens made this time, ``(m,)``.
            ended: Whether it came to its end; one that was stopped is compared as far as it came.
        """
        same = min(len(ids), len(self.ids))
        differing = np.flatnonzero(ids[:same] != self.ids[:same])
        parts_at = int(differing[0]) if len(differing) else None
        if parts_at is None and ended and len(ids) != len(self.ids):
            parts_at = same
        return {"of": self.of, "parts_at": parts_at, "compared": same, "ended": ended or parts_at is not None}


def repeat_note(stats: Mapping[str, Any]) -> str:
    """What a repeated answer says of itself."""
    told = stats.get(REPEATED)
    if not isinstance(told, Mapping):
        return ""
    at = told.get("parts_at")
    if isinstance(at, int):
        return f"differs from the original from its token {at + 1:,} on"
    return "the same, token for token" if told.get("ended") else f"the same for {told.get('compared', 0):,} tokens"


# ---- in words ---------------------------------------------------------------------------------------------------------


def how_made(node: NodeRow) -> Made | None:
    """What is known of how an answer was made, for the window; None for one from before that was stored."""
    made, stats = node.stats.get(MADE), node.stats
    if not isinstance(made, Mapping):
        return None
    options = made.get("options") or {}
    said_by = stored_sources(made)
    named = named_options(options).items()
    settings = [Setting(n.removeprefix("sampling."), words(v), said_by.get(n, DEFAULT)) for n, v in named]
    settings.sort(key=lambda setting: setting.source == DEFAULT)
    facts = {
        "model": str(made.get("model")),
        "engine": " · ".join(str(made[name]) for name in ("backend", "device", "dtype") if made.get(name)),
        "fingerprint": str(made.get("fingerprint"))[:12],
        "adapters": stack_words(made.get("adapters")) if made.get("adapters") else "",
        "found by": f"a beam search of {beams_of(node)} beams" if beams_of(node) else "",
        "score": f"{stats['score']:.4f}" if isinstance(stats.get("score"), float) else "",
        "seed": "" if beams_of(node) else f"{options.get('seed')}" + ("" if "seed" in said_by else " (drawn)"),
        "prompt": _tokens(stats.get("prompt")),
        "generated": _tokens(stats.get("generated")),
        "reused": _tokens(stats.get("reused")),
        "computed": _tokens(stats.get("computed")),
        "first token after": _seconds(stats.get("first_token_seconds")),
        "decoded in": _seconds(stats.get("decode_seconds")),
        "ended by": str(node.finish_reason or "").replace("_", " "),
        "repeats": repeat_note(stats),
    }
    return Made({name: words for name, words in facts.items() if words}, tuple(settings))


def words(value: Any) -> str:
    """A stored value, for people."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case {"kind": kind, "source": source}:
            return f"{kind} {source}"
        case Mapping():
            return ", ".join(f"{key}: {words(item)}" for key, item in value.items()) or "none"
        case list():
            return ", ".join(map(words, value)) or "none"
    return str(value)


def _tokens(count: Any) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}" if isinstance(count, int) else ""


def _seconds(seconds: Any) -> str:
    return f"{seconds:.2f} s" if isinstance(seconds, float) else ""
