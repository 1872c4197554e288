"""What sets the architectures apart that are imported from GGUF.

Each is proven equal to transformers on tiny models (`tests/runtime/loading/test_families.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. All are decoders of llama's build: RMS norms, rotary positions, gated MLPs.

    Attributes:
        model_type: In config.json.
        transformers: The class of the model there.
        interleaved: Whether rows of q and k lie in GGUF in llama.cpp's order of rotary pairs.
        biased: Whether q, k and v have biases.
        normed: Whether q and k go through norms, a head at a time.
        fused: Whether q, k and v are one matrix, gate and up another.
        narrow: Whether all heads together are as wide as the model; its config has no size of a head then.
        gemma: Whether it is built as Gemma: norms behind attention and MLP as well, all of them 1 higher in GGUF than in the
            model's own folder, a GELU, tied embeddings, a scale of queries that config.json names.
        capped: Whether logits and attention scores are capped by a tanh.
        windowed: Whether the file's sliding window counts.
        full_every: Attention is full in every n-th layer and sees the window in the others; 1: the window is in all.
        ropes: Kinds of ``rope_parameters`` that are proven.
        largest: Layers of the family's largest model, whose queries are scaled by width / heads instead of a head's size.
    """

    model_type: str
    transformers: str
    interleaved: bool = False
    biased: bool = False
    normed: bool = False
    fused: bool = False
    narrow: bool = False
    gemma: bool = False
    capped: bool = False
    windowed: bool = False
    full_every: int = 1
    ropes: tuple[str, ...] = ("default", "linear", "llama3", "yarn")
    largest: int = 0


_PLAIN = ("default",)
_GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", gemma=True, capped=True, windowed=True, full_every=2, ropes=_PLAIN, largest=46)
_GEMMA3 = Family("gemma3_text", "Gemma3ForCausalLM", normed=True, gemma=True, windowed=True, full_every=6, largest=62)
FAMILIES = {  # by general.architecture
    "llama": Family("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", biased=True, narrow=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", normed=True),
    "phi3": Family("phi3", "Phi3ForCausalLM", fused=True, narrow=True, windowed=True, ropes=_PLAIN),
    "gemma2": _GEMMA2,
    "gemma3": replace(_GEMMA3, ropes=("default", "linear")),
}
MISTRAL = Family("mistral", "MistralForCausalLM", interleaved=True, windowed=True)  # "llama" in GGUF; with a window it is this
WORKS = f"{', '.join(FAMILIES)} (a Mistral says llama)"


def family_of(architecture: str, window: int | None) -> Family:
    """The family of a file.

    Args:
        architecture: One of `FAMILIES`.
        window: The sliding window that the file names, if it is shorter than the context.
    """
    return MISTRAL if architecture == "llama" and window is not None else FAMILIES[architecture]
