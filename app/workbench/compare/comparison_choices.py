"""The models that a path can be compared with: variants of the model in use, and others of the shelf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from app.workbench.answers.provenance_text import stack_words
from app.workbench.models.views import detail_of
from ui import AdapterChoice, BackendChoice, ComparisonChoice, WeightsForm, in_window, translate

if TYPE_CHECKING:
    from runtime import ShelfEntry

OTHER_DTYPES = {  # the other precision of each engine; none from float32 on MLX, where 16 bits are slow on a CPU
    ("hf", "float32"): "bfloat16",
    ("hf", "bfloat16"): "float32",
    ("hf", "float16"): "float32",
    ("mlx", "bfloat16"): "float32",
    ("mlx", "float16"): "float32",
}


def comparison_choices(
    source: str,
    backends: Sequence[BackendChoice],
    entries: Sequence[ShelfEntry],
    stack: Sequence[AdapterChoice],
    *,
    dtype: str,
    weights: str = "",
    forms: Sequence[WeightsForm] = (),
    set_weights: Callable[[str, str], str] = lambda _name, _backend: "",
) -> list[ComparisonChoice]:
    """All choices, the most similar first.

    Args:
        source: The model in use.
        backends: The engines, the one in use marked.
        entries: The shelf.
        stack: The session's adapters, including those that are switched off.
        dtype: The dtype of the model in use; "" while none runs.
        weights: The form of the linear weights of the model in use.
        forms: The forms that these weights could have.
        set_weights: The form set for another model, by its name and engine; "": the engine's own.
    """
    on = tuple(choice for choice in stack if choice.on)
    now = next((choice.name for choice in backends if choice.chosen), "auto")
    name = next((entry.title for entry in entries if entry.name == source), source)
    return [
        *_other_adapters(source, now, name, stack),
        *_other_engines(source, now, name, on, backends, dtype),
        *_other_weights(source, now, name, on, forms, weights),
        *(_other_model(entry, now, backends, set_weights) for entry in entries if entry.name != source),
    ]


def other_models(
    entries: Sequence[ShelfEntry], backends: Sequence[BackendChoice], set_weights: Callable[[str, str], str]
) -> list[ComparisonChoice]:
    """The choices for a model on a server: every model of the shelf."""
    now = next((choice.name for choice in backends if choice.chosen), "auto")
    return [_other_model(entry, now, backends, set_weights) for entry in entries]


def _other_adapters(source: str, backend: str, name: str, stack: Sequence[AdapterChoice]) -> list[ComparisonChoice]:
    """The model without adapters and under each single one, except the stack in use: its engine has them all."""
    on = tuple(choice for choice in stack if choice.on)
    wanted: list[tuple[AdapterChoice, ...]] = [(), *((replace(choice, on=True),) for choice in stack)]
    return [
        ComparisonChoice(source, backend, f"{name} with {in_words(each)}", adapters=each, same_engine=True)
        for each in wanted
        if each != on
    ]


def _other_engines(
    source: str,
    now: str,
    name: str,
    on: tuple[AdapterChoice, ...],
    backends: Sequence[BackendChoice],
    dtype: str,
) -> list[ComparisonChoice]:
    found = [
        ComparisonChoice(source, choice.name, f"{name} on {choice.name}", adapters=on, problem=choice.problem)
        for choice in backends
        if not choice.chosen
    ]
    other = OTHER_DTYPES.get((now, dtype.rpartition(".")[2]))
    if other is not None:
        found.append(ComparisonChoice(source, now, f"{name} in {other}", adapters=on, dtype=other))
    return found


def _other_weights(
    source: str, now: str, name: str, on: tuple[AdapterChoice, ...], forms: Sequence[WeightsForm], held: str
) -> list[ComparisonChoice]:
    return [
        ComparisonChoice(
            source,
            now,
            translate("Workbench", "{0} with {1} weights").format(name, form.name),
            translate("Workbench", "perplexity {0}").format(form.cost) if form.cost else "",
            adapters=on,
            weights=form.name,
        )
        for form in forms
        if form.name != held
    ]


def _other_model(
    entry: ShelfEntry, now: str, backends: Sequence[BackendChoice], set_weights: Callable[[str, str], str]
) -> ComparisonChoice:
    here = [choice.name for choice in backends if not choice.problem]
    runs = [name for name in here if name in entry.backends or not entry.backends]
    problem = in_window(entry.problem) if not entry.complete else ""
    if not problem and not runs:
        engines = translate("Workbench", " or ").join(entry.backends)
        problem = translate("Workbench", "runs on {0}, which is not installed").format(engines)
    backend = now if now in runs or not runs else runs[0]
    held = set_weights(entry.name, backend)
    label = translate("Workbench", "{0} with {1} weights").format(entry.title, held) if held else entry.title
    return ComparisonChoice(entry.name, backend, label, detail_of(entry), weights=held, problem=problem)


def in_words(stack: Sequence[AdapterChoice]) -> str:
    """Adapters in words."""
    return stack_words([(choice.name, choice.scale) for choice in stack])
