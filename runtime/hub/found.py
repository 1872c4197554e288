"""A model that a search found."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.hub.plan import Kind


@dataclass(frozen=True, slots=True)
class HubModel:
    """What a hub says of a repository that it found, before anything of it is looked up.

    Attributes:
        source: ``ORG/NAME``, as `plan_download` and `fetch_model` take it.
        kind: A model, or an adapter for one.
        backends: Which of "hf" and "mlx" can run it, as far as that can be told; none where `problem` says why.
        problem: Why it cannot run here, or why nobody can tell before it is looked up.
        parameters: Numbers in all, where the hub says so.
        quantisation: "4 bit (mlx)", a foreign method's name; None for plain weights.
        licence: As the hub names it; empty where it does not.
        gated: Its owners want consent, given on its page.
        private: Only those whom its owners let see it.
        downloads: In the last month.
        likes: Of people.
    """

    source: str
    kind: Kind = "model"
    backends: tuple[str, ...] = ()
    problem: str = ""
    parameters: int | None = None
    quantisation: str | None = None
    licence: str = ""
    gated: bool = False
    private: bool = False
    downloads: int = 0
    likes: int = 0
