"""Tiny random models of many architectures, saved once into the repository's ignored `.cache/tiny/`.

Their tokenizer is a small byte-level BPE trained on CPython's own documentation, with ChatML specials, so that nothing
has to be downloaded. The folder above them is named by a digest of this file: a change rebuilds all models.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.loading.model_folder import ModelFolder
from runtime.shelf.source import resolve

CACHE = Path(__file__).parent.parent / ".cache" / "tiny"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
VOCABULARY = 1000  # of the tokenizer
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_COMMON: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
_SIZES: dict[str, Any] = {
    **_COMMON,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,  # large, so that a wrong mask or position shows in the numbers
}
_GEMMA3: dict[str, Any] = {
    **_SIZES,
    "head_dim": 16,
    "sliding_window": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": True,
}


def _llama(**changes: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**{**_SIZES, "tie_word_embeddings": False, "rope_theta": 100_000.0, **changes})


def _qwen3() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**{**_SIZES, "head_dim": 16, "tie_word_embeddings": True})


def _gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config(**_COMMON, n_embd=64, n_layer=3, n_head=4, n_positions=512, initializer_range=0.2)


def _gemma3(**changes: Any) -> Any:
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(**{**_GEMMA3, **changes})


def _mistral() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**_SIZES, sliding_window=16, tie_word_embeddings=False)


def _qwen2() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**_SIZES, tie_word_embeddings=False)


def _phi3() -> Any:
    from transformers import Phi3Config

    return Phi3Config(**_SIZES, original_max_position_embeddings=4096, sliding_window=16, tie_word_embeddings=False)


def _gemma2() -> Any:
    from transformers import Gemma2Config

    changes = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True}
    return Gemma2Config(**{**_SIZES, **changes}, attn_logit_softcapping=5.0, final_logit_softcapping=10.0)


def _mamba() -> Any:
    from transformers import MambaConfig

    return MambaConfig(**_COMMON, hidden_size=64, num_hidden_layers=3, state_size=8, initializer_range=0.2)


def _lfm2() -> Any:
    from transformers import Lfm2Config

    return Lfm2Config(
        **{**_SIZES, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "tie_word_embeddings": True},
        block_auto_adjust_ff_dim=False,
    )


def _falcon_h1() -> Any:
    from transformers import FalconH1Config

    return FalconH1Config(
        **_SIZES, head_dim=16, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1
    )


def _recurrent_gemma() -> Any:
    from transformers import RecurrentGemmaConfig

    sizes = {**_COMMON, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    return RecurrentGemmaConfig(
        **sizes,
        num_key_value_heads=1,  # the only number that mlx-lm supports
        head_dim=16,
        lru_width=64,
        attention_window_size=16,
        block_types=["recurrent", "attention"] * 2,
    )


def _zaya() -> Any:
    from transformers import ZayaConfig

    sizes = {name: size for name, size in _SIZES.items() if name != "intermediate_size"}
    kinds = ["hybrid", "hybrid_sliding", "hybrid"]
    return ZayaConfig(
        **sizes,
        head_dim=16,
        sliding_window=16,
        layer_types=kinds,
        moe_intermediate_size=64,
        num_experts=2,
        router_hidden_size=32,
    )


BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama_wide": lambda: _llama(vocab_size=VOCABULARY + 24),  # logits padded wider than the tokenizer
    "qwen3": _qwen3,
    "gpt2": _gpt2,
    "gemma3": _gemma3,
    "gemma3_80": lambda: _gemma3(hidden_size=80),  # sqrt(80) is not a bfloat16
    "mistral": _mistral,
    "qwen2": _qwen2,
    "phi3": _phi3,
    "gemma2": _gemma2,
    "mamba": _mamba,
    "lfm2": _lfm2,
    "falcon_h1": _falcon_h1,
}
BESIDE: dict[str, Callable[[], Any]] = {  # built the same way; not everything is tested with them
    "recurrent_gemma": _recurrent_gemma,  # alternating windows and recurrent layers: correct in mlx-lm
    "llama_deep": lambda: _llama(num_hidden_layers=30),
    "zaya": _zaya,  # windows and a convolution in each layer: correct in transformers
}


def tiny_folder(name: str) -> ModelFolder:
    """The checked folder of the tiny model `name` (a key of `BUILDERS` or `BESIDE`), built if it is not there yet."""
    return resolve(tiny_path(name))


def tiny_path(name: str) -> Path:
    """The path of the folder; see `tiny_folder`."""
    path = CACHE / _digest() / f"tiny-{name}"
    if not path.is_dir():
        _build(name, path)
    return path


@functools.cache
def tiny_tokenizer() -> Any:
    """The tokenizer of the tiny models, a `tokenizers.Tokenizer`."""
    from pydoc_data import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "".join(topics.topics[key] for key in sorted(topics.topics))
    tokenizer.train_from_iterator([text[:200_000]], trainer)
    return tokenizer


def _build(name: str, path: Path) -> None:
    build((BUILDERS | BESIDE)[name](), path, seed=len(name) * 1000 + sum(name.encode()))


def build(config: Any, path: Path, seed: int = 1) -> Path:
    """Saves a random model into a folder beside the final one, then renames: two test runs may build at once."""
    import torch
    from transformers import AutoModelForCausalLM

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        folder = Path(temporary) / "model"
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        model.save_pretrained(folder)
        tiny_tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(), indent=1))
        try:
            os.replace(folder, path)  # noqa: PTH105  # Path.replace cannot tell a race from an error either
        except OSError:
            if not path.is_dir():
                raise
    return path


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[2],
        "pad_token": SPECIALS[0],
        "add_bos_token": False,
    }


@functools.cache
def _digest() -> str:
    made_by = importlib.metadata.version("transformers")  # the folders have its form of config.json
    return hashlib.sha256(Path(__file__).read_bytes() + made_by.encode()).hexdigest()[:12]
