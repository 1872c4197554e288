"""A sampler: the stages of one stream in their order, and the draw at their end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.errors import GrammarError, InvalidRequestError
from runtime.numerics.ranking import SHALLOW, Look, Ranked
from runtime.numerics.scoring import COLDEST
from runtime.numerics.select import RankedToken
from runtime.numerics.sorted_row import SortedRow
from runtime.options.generation import DEFAULTS, STAGES, Breaker, SamplingOptions
from runtime.records import Float32, Int32
from runtime.sampling.history import History
from runtime.sampling.pool import CandidatePool, View
from runtime.sampling.spec import Chosen, Kernel, Search, StageKind, StageSpec

DRAW_STAGE = 0  # the draw's number in the counter; other stages have `StageSpec.draws`
LONGEST_HEAD = 256  # most entries that are sorted at first for top-k
_FEWEST = 512  # entries sought by value for a cut at a mass: enough for most rows for which the head is too short
_USUAL = 0.9  # share of the mass that most rows reach within _TIMES * exp(entropy) tokens
_TIMES = 4.0
_MORE_TIMES = 8.0  # for larger shares, and for a temperature above _COLD
_COLD = 0.9  # up to this temperature fewer tokens are enough
_COLD_TIMES = 2.0
_WORD = (1 << 64) - 1
_FACTOR_0, _FACTOR_1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_STEP_0, _STEP_1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B

_EMPTY_HISTORY = History([])
Bool = npt.NDArray[np.bool_]


class TracedStep(NamedTuple):
    """The pool after one stage."""

    stage: str
    view: View
    u: float  # the random number of the stage; NaN for a deterministic one


@dataclass(slots=True)  # creating a frozen one takes three times as long
class Traced:
    """A draw with the pool after each stage."""

    token: int
    u: float  # NaN when greedy
    steps: tuple[TracedStep, ...]  # "raw", every stage that is on, "draw"
    rank: int  # of the token in the last sorted row, from 0
    before: float  # weight of the tokens before it there; the likeliest weighs 1
    shift: float  # raw logits less log-probabilities


@dataclass(frozen=True, slots=True)
class Sampler:
    """Resolved settings of one stream.

    A draw maps u = Philox(key = seed, counter = (position, branch, stage)) through the inverse CDF of the tokens, sorted by
    descending probability, ties by id. u depends only on key and counter: a stream draws the same tokens alone, in a batch,
    on a branch and after a reload, as long as the model computes the same numbers there within the rounding of float32.
    The `ModelInfo.warnings` of a model that rounds further say so (docs/tolerances.md).

    Args:
        settings: The options; unset fields have their defaults.
        seed: Key of the stream's random numbers.
        branch: Separates streams that share a seed.
        breakers: Ids across which DRY sees no repetition; see `breaker_ids`.

    Attributes:
        heats: The temperatures at which a draw without and with a trace needs the total weight of the raw row; 1: it does not.
        remembers: Whether a draw depends on earlier tokens.
        edits: Whether a stage changes scores, which may lie anywhere in the row.
        greedy: Whether a draw is the argmax of the row.
        stages: Names of the stages that are on.
    """

    settings: SamplingOptions
    seed: int
    branch: int = 0
    breakers: tuple[int, ...] = ()
    temperature: float = field(init=False)
    heats: tuple[float, float] = field(init=False, repr=False, compare=False)
    remembers: bool = field(init=False, repr=False, compare=False)
    edits: bool = field(init=False, repr=False, compare=False)
    greedy: bool = field(init=False, repr=False, compare=False)
    stages: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _kernels: tuple[tuple[StageSpec, Kernel], ...] = field(init=False, repr=False, compare=False)
    looks: list[Look] = field(init=False, repr=False, compare=False)  # see `first_look`; without and with a trace

    def __post_init__(self) -> None:
        chosen = {**DEFAULTS, **self.settings.given(), "dry_breakers": self.breakers}
        temperature = float(chosen["temperature"]) if "temperature" in chosen["order"] else 1.0
        stages: dict[str, tuple[StageSpec, Kernel]] = {}
        cuts: dict[str, Search] = {}
        remembers = edits = False
        for name in chosen["order"]:
            spec = STAGES[name]
            if temperature == 0.0 and spec.kind is not StageKind.EDIT:
                continue  # greedy: only stages that change scores count
            if not any(each.switch and chosen[each.name] not in (None, each.default, []) for each in spec.parameters):
                continue
            stages[name] = spec, spec.kernel(chosen)
            remembers |= spec.remembers
            edits |= spec.kind is StageKind.EDIT
            if spec.search is not None:
                cuts[name] = spec.search
        on = tuple(stages)
        heat = temperature if on[:1] == ("temperature",) and temperature >= COLDEST else 1.0
        # without a trace, the entries of the range that a cut by rank or weight leaves give its weight
        settled = not {Search.RANK, Search.WEIGHT}.isdisjoint(cuts.values())
        looks = [SHALLOW, SHALLOW]
        if cuts:
            looks = [first_look(on, cuts, chosen, traced=False), first_look(on, cuts, chosen, traced=True)]
        made = {
            "temperature": temperature,
            "heats": (1.0 if settled else heat, heat),
            "remembers": remembers,
            "edits": edits,
            "greedy": temperature == 0.0 and not on,
            "stages": on,
            "_kernels": tuple(stages.values()),
            "looks": looks,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def window(self) -> int:
        """The number of last tokens that the penalties consider; 0: all."""
        return self.settings.penalty_window or 0

    def draw(
        self,
        logprobs: Float32 | Ranked,
        position: int,
        *,
        history: Int32 | History | None = None,
        allowed: Bool | None = None,
        shift: float = 0.0,
    ) -> tuple[int, float]:
        """The token for one row, and the number it was drawn with (NaN when greedy).

        Args:
            logprobs: ``(vocab,)`` float32, log-softmax of the raw logits; a `Ranked` where its order is needed elsewhere too.
            position: The token's position in its path.
            history: Prompt and answer so far, for penalties and DRY; None is empty.
            allowed: ``(vocab,)`` bool, the tokens that a grammar allows; None is all.
            shift: The normaliser that was subtracted from the raw logits, on whose sign the repetition penalty depends.

        Raises:
            GrammarError: The grammar allows no token, or only banned ones.
            InvalidRequestError: All tokens are banned, or an id of the settings is outside the row.
        """
        if self.greedy and allowed is None:
            if not isinstance(logprobs, Ranked):
                return int(logprobs.argmax()), float("nan")
            logprobs.reach(1)  # shared with the record of the token
            return int(logprobs.ids[0]), float("nan")
        if not self._kernels and allowed is None:  # the whole row as it is
            order = SortedRow(logprobs if isinstance(logprobs, Ranked) else Ranked(logprobs), 1.0, self.looks[False])
            u = uniform(self.seed, position, self.branch)
            return order.at_mass(u * order.total(u)).token, u
        pool = CandidatePool(logprobs, shift, look=self.looks[False])
        number = partial(uniform, self.seed, position, self.branch)
        self._run(pool, number, history, allowed, None)
        place, u = self._pick(pool, number)
        return place.token, u

    def trace(
        self,
        logprobs: Float32 | Ranked,
        position: int,
        *,
        history: Int32 | History | None = None,
        allowed: Bool | None = None,
        shift: float = 0.0,
        number: Callable[[int], float] | None = None,
    ) -> Traced:
        """`draw` with the pool after each stage; `number` replaces the random number of a stage, by its `StageSpec.draws`."""
        pool = CandidatePool(logprobs, shift, traced=True, look=self.looks[True])
        steps = [TracedStep("raw", pool.view, float("nan"))]
        number = number or partial(uniform, self.seed, position, self.branch)
        self._run(pool, number, history, allowed, steps)
        place, u = self._pick(pool, number)
        view = steps[-1].view
        if self.temperature == 0.0:
            pool.last = place
            view = pool.view
        return Traced(place.token, u, (*steps, TracedStep("draw", view, u)), place.rank, place.before, shift)

    def _run(
        self,
        pool: CandidatePool,
        number: Callable[[int], float],
        history: Int32 | History | None,
        allowed: Bool | None,
        steps: list[TracedStep] | None,
    ) -> None:
        if not isinstance(history, History):
            history = _EMPTY_HISTORY if history is None or not self.remembers else History(history, self.window)
        if allowed is not None:
            vocab = len(pool.row)
            if allowed.shape != (vocab,) or allowed.dtype != np.bool_:
                raise InvalidRequestError(f"allowed is a mask of ({vocab:,},) bool, not {allowed.shape} {allowed.dtype}")
            pool.allow(allowed)
            if steps is not None:
                _require_tokens(pool, allowed)
                steps.append(TracedStep("grammar", pool.view, float("nan")))
        changed = allowed is not None
        for spec, kernel in self._kernels:
            if spec.kind is not StageKind.EDIT and changed:
                _require_tokens(pool, allowed)
            changed = spec.kind is StageKind.EDIT
            u = float("nan") if spec.draws is None else number(spec.draws)
            try:
                kernel(pool, history, u)
            except IndexError:
                self.settings.check(len(pool.row))  # names an id outside the vocabulary
                raise
            if steps is not None:
                if changed:
                    _require_tokens(pool, allowed)
                    changed = False
                steps.append(TracedStep(spec.name, pool.view, u))
        if changed:
            _require_tokens(pool, allowed)

    def _pick(self, pool: CandidatePool, number: Callable[[int], float]) -> tuple[RankedToken, float]:
        if self.temperature == 0.0:
            return pool.order.at_rank(0), float("nan")
        u = number(DRAW_STAGE)
        order, below, last = pool.order, pool.below, pool.last
        upto = pool.upto if last or pool.first else order.total(u)
        place = order.at_mass(below + u * (upto - below))
        if last is not None and place.rank > last.rank:  # by rounding
            place = last
        return place, u


def first_look(on: Sequence[str], cuts: Mapping[str, Search], chosen: Chosen, *, traced: bool) -> Look:
    """How much of the row is sorted at first.

    Without a trace, a first cut by top-k needs k entries, and top-p needs none where min-p may keep less. Other cuts at a mass
    need more than the default, fewer at a low temperature.

    Args:
        on: Names of the stages that are on, in order.
        cuts: Cuts with a search, one or more.
        chosen: All settings.
        traced: Whether the pool after each stage is kept.
    """
    searches = list(cuts.values())
    name = next(iter(cuts))
    value = float(chosen[STAGES[name].parameters[0].name])
    if searches[0] is Search.RANK:
        return SHALLOW if traced else Look(min(int(value), LONGEST_HEAD))
    spared = Search.LAZY_MASS not in searches or (Search.WEIGHT in searches and not traced)
    if Search.MASS not in searches and spared:
        return SHALLOW
    if "temperature" in on[: on.index(name)]:  # the row's entropy is that of another distribution
        cold = chosen["temperature"] <= _COLD
        return Look(times=_COLD_TIMES, fewest=_FEWEST // 2) if cold else Look(times=_MORE_TIMES, fewest=_FEWEST)
    share = 0.0 if searches[0] is Search.WEIGHT else value
    return Look(times=_TIMES if share <= _USUAL else _MORE_TIMES, fewest=_FEWEST, share=share)


def _require_tokens(pool: CandidatePool, allowed: Bool | None) -> None:
    """Raises an error when no token is left to draw."""
    if pool.alive:
        return
    if allowed is None:
        raise InvalidRequestError("every token that the model could say is banned; allow at least one of them")
    count = int(np.count_nonzero(allowed))
    why = (
        f"all {count:,} tokens that the grammar allows here are banned; lift the bans"
        if count
        else "the grammar allows no token here"
    )
    raise GrammarError(why)


def breaker_ids(breakers: Collection[Breaker], pieces: Sequence[bytes]) -> tuple[int, ...]:
    """The ids of DRY's breakers.

    Args:
        breakers: Ids, and texts, each for all tokens that contain it.
        pieces: The bytes of every id.

    Raises:
        InvalidRequestError: A text that no token contains.
    """
    ids: set[int] = set()
    for breaker in breakers:
        if isinstance(breaker, str):
            sought = breaker.encode()
            found = [token for token, piece in enumerate(pieces) if sought in piece]
            if not found and breaker not in DEFAULTS["dry_breakers"]:
                raise InvalidRequestError(
                    f"dry_breakers: no token contains {breaker!r}; name the ids of the tokens it ends with"
                )
            ids.update(found)
        else:
            ids.add(int(breaker))
    return tuple(sorted(ids))


def make_sampler(
    settings: SamplingOptions, seed: int, branch: int = 0, *, pieces: Callable[[], Sequence[bytes]] = tuple
) -> Sampler:
    """The sampler of one stream.

    Args:
        settings: Unset fields get their defaults.
        seed: Key of the stream's random numbers.
        branch: Separates streams that share a seed.
        pieces: Returns the bytes of every id; called where DRY is on.
    """
    dry = settings.dry_multiplier and (settings.order is None or "dry" in settings.order)
    breakers = settings.dry_breakers if settings.dry_breakers is not None else DEFAULTS["dry_breakers"]
    return Sampler(settings, seed, branch, breaker_ids(breakers, pieces()) if dry else ())


def fresh_seed() -> int:
    """A random seed of 63 bits, which SQLite can store."""
    return secrets.randbits(63)


def uniform(seed: int, position: int, branch: int = 0, stage: int = DRAW_STAGE) -> float:
    """The number in [0, 1) of a stage at a position of a stream.

    From the first word of Philox4x64-10 (Salmon et al. 2011), as ``numpy.random.Philox`` gives it, without its set-up cost.
    """
    c0, c1, c2, c3 = 1, position, branch, stage
    for k0, k1 in _keys(seed):
        a, b = _FACTOR_0 * c0, _FACTOR_1 * c2
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & _WORD, (a >> 64) ^ c3 ^ k1, a & _WORD
    return (c0 >> 11) * 2.0**-53


@lru_cache(maxsize=1024)  # streams
def _keys(key: int) -> tuple[tuple[int, int], ...]:
    """The keys of the ten rounds."""
    first = key & _WORD, key >> 64
    return tuple(((first[0] + i * _STEP_0) & _WORD, (first[1] + i * _STEP_1) & _WORD) for i in range(10))
