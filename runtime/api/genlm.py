"""`load_model_by_name`: genlm-backend's call, with its options translated to those of `load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from runtime.api.language_model import LanguageModel
from runtime.api.load import load
from runtime.errors import InvalidRequestError
from runtime.options.checking import check_value, nearest, shown, whole

Ours = dict[str, Any]  # load options
Translate = Callable[[Any], Ours]

_DTYPES: Final = {"half": "float16", "float": "float32"}  # vLLM's other names


def load_model_by_name(name: str, backend: str | None = None, llm_opts: Mapping[str, Any] | None = None) -> LanguageModel:
    """genlm-backend's spelling of `load`.

    Args:
        name: The model.
        backend: "mlx", "hf" or "mock"; None chooses. "vllm" connects to a server: `llm_opts` has its `base_url` and the other
            options of `connect`, and `name` is the model's id on the server ("" for the only one).
        llm_opts: Options of `load`, or genlm's names for them: `batch_size` (rows), `prefill_step_size` (tokens per chunk),
            `cache_size` (the most next-token vectors in memory, 0 for none; the limit of the KV is `kv_cache_bytes`). `timeout`
            is accepted and ignored. Each option in `hf_opts` (transformers'), `bitsandbytes_opts` and `engine_opts` (vLLM's) is
            translated.

    Raises:
        InvalidRequestError: An unknown option, an option under both its names, an option without a counterpart (the message
            names the nearest thing), or a value out of range.
        UnknownBackendError, BackendUnavailableError, ModelLoadError: As for `load`.
    """
    if llm_opts is not None and not isinstance(llm_opts, Mapping):
        raise InvalidRequestError(f"llm_opts is a mapping of names and values, not {shown(llm_opts)}")
    given = dict(llm_opts or {})
    given.pop("timeout", None)
    if backend == "vllm" and "base_url" in given:
        from runtime.remote.connect import connect

        return connect(given.pop("base_url"), name or None, **given)
    vectors = given.pop("cache_size", None)
    if vectors is not None:
        check_value("cache_size", vectors, whole(0, of="next-token vectors"))
    options: Ours = {}
    origins: dict[str, str] = {}  # our name -> the genlm option that set it, or ""
    for option, value in given.items():
        if option in _GROUPS:
            for inner, translated in _translated(option, value).items():
                _take(options, origins, inner, translated, option)
        elif option in _OWN:
            _take(options, origins, _OWN[option], value, option)
        else:
            _take(options, origins, option, value, "")
    model = load(name, backend, **options)
    if vectors is not None:
        model.keep_vectors(vectors)
    return model


def _take(options: Ours, origins: dict[str, str], name: str, value: Any, origin: str) -> None:
    if name in options and options[name] != value:
        genlms = origin or origins[name]
        raise InvalidRequestError(f"{genlms} is genlm's name for {name}: give one of the two")
    options[name], origins[name] = value, origin


def _translated(group: str, given: Any) -> Ours:
    """The options of one of genlm's dictionaries, by our names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{group} is a mapping of names and values, not {shown(given)}")
    found: Ours = {}
    for name, value in given.items():
        rule = _GROUPS[group].get(name)
        if rule is None:
            hint = nearest(name, _GROUPS[group])
            raise InvalidRequestError(f"{group} has {shown(name)}, which has no counterpart here: {hint}")
        if isinstance(rule, str):
            raise InvalidRequestError(f"{group}: {name} is not taken over: {rule}")
        try:
            found |= rule(value)
        except ValueError as fault:
            raise InvalidRequestError(f"{group}: {name}={shown(value)}: {fault}") from None
    return found


def _is(name: str) -> Translate:
    return lambda value: {} if value is None else {name: value}


def _means_nothing(_: Any) -> Ours:
    """Ignores an option: of a library's internals, or for a behaviour that always applies here."""
    return {}


def _only(wanted: Any, instead: str) -> Translate:
    """Accepts only the value `wanted` (or None) of an option; the message for others is `instead`."""

    def translate(value: Any) -> Ours:
        if value is not None and value != wanted:
            raise ValueError(instead)
        return {}

    return translate


def _dtype(value: Any) -> Ours:
    name = str(value).removeprefix("torch.")  # also accepts torch.float16
    return {"dtype": _DTYPES.get(name, name)}


def _device(value: Any) -> Ours:
    if isinstance(value, Mapping):
        if set(value) != {""}:
            raise ValueError("a model is on one device: device='cuda:0', with offload='disk' for what does not fit")
        value = value[""]
    if isinstance(value, int) and not isinstance(value, bool):
        return {"device": f"cuda:{value}"}
    return {"device": "auto" if value in (None, "auto", "balanced", "sequential") else str(value)}


def _in_bits(weights: str) -> Translate:
    return lambda value: {"weights": weights} if value else {}


_DOWNLOADS: Final = "nothing is downloaded at load; `elsewise models fetch NAME`, or runtime.fetch_model, does it"
_QUANTISED: Final = "weights='int8' or weights='int4' holds linear weights in fewer bits"
_ONE_DEVICE: Final = "a model is on one device; offload='disk' reads from disk what does not fit"
_BUDGET: Final = "kv_cache_bytes=... is the memory that the KV may take, in bytes"
_ROPE: Final = "the model's own config.json says it"
_NO_CODE: Final = "no code of a model is run here, whatever it asks for"
_INT4: Final = "weights='int4' has one form: 32 weights to a step, computed with in float32"

_OWN: Final = {"batch_size": "max_batch_rows", "prefill_step_size": "prefill_chunk_tokens"}
_HF: Final[dict[str, Translate | str]] = {
    "torch_dtype": _dtype,
    "dtype": _dtype,
    "device_map": _device,
    "attn_implementation": _is("attention"),
    "trust_remote_code": _only(False, _NO_CODE),
    "load_in_8bit": _in_bits("int8"),
    "load_in_4bit": _in_bits("int4"),
    "quantization_config": _QUANTISED,
    "low_cpu_mem_usage": _means_nothing,
    "use_safetensors": _only(True, "weights are read from safetensors alone"),
    "local_files_only": _only(True, _DOWNLOADS),
    "offload_folder": "offload='disk' reads weights from the model's own files",
    "max_memory": "offload='disk' with offload_memory_bytes=... bounds the memory of weights",
    "cache_dir": "ELSEWISE_MODELS names the folder of models",
    "revision": "a revision is a part of the name: org/name@revision",
    "token": _DOWNLOADS,
    "use_auth_token": _DOWNLOADS,
    "force_download": _DOWNLOADS,
    "rope_scaling": _ROPE,
    "config": _ROPE,
}
_BITSANDBYTES: Final[dict[str, Translate | str]] = {
    "load_in_8bit": _in_bits("int8"),
    "load_in_4bit": _in_bits("int4"),
    **dict.fromkeys(("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"), _INT4),
    "bnb_4bit_compute_dtype": _INT4,
    "llm_int8_threshold": "weights='int8' has no outliers that are kept apart",
    "llm_int8_skip_modules": "weights='int8' holds every linear module so, but for the head",
    "llm_int8_enable_fp32_cpu_offload": _ONE_DEVICE,
    "llm_int8_has_fp16_weight": _QUANTISED,
}
_VLLM: Final[dict[str, Translate | str]] = {
    "dtype": _dtype,
    "max_model_len": _is("context_length"),
    "max_num_seqs": _is("max_batch_rows"),
    "max_num_batched_tokens": _is("max_batch_tokens"),
    "enable_prefix_caching": _is("cache"),
    "chat_template": lambda value: {"chat_template_file" if Path(str(value)).is_file() else "chat_template": value},
    "device": _device,
    "trust_remote_code": _only(False, _NO_CODE),
    "kv_cache_dtype": _only("auto", "kv_dtype='q8' or kv_dtype='q4' holds the KV in fewer bits"),
    "gpu_memory_utilization": _BUDGET,
    "kv_cache_memory_bytes": _is("kv_cache_bytes"),
    "num_gpu_blocks_override": _BUDGET,
    "swap_space": _BUDGET,
    "block_size": "KV is held by tokens, not by blocks of a size",
    "cpu_offload_gb": "offload='disk' reads from disk what does not fit",
    "quantization": _QUANTISED,
    "tensor_parallel_size": _only(1, _ONE_DEVICE),
    "pipeline_parallel_size": _only(1, _ONE_DEVICE),
    "data_parallel_size": _only(1, _ONE_DEVICE),
    "speculative_config": "draft_model='NAME' at load, and GenerationOptions(speculative=...) with a request, turn it on",
    "seed": "GenerationOptions(seed=...), or sample(..., seed=...), is given with a request",
    "tokenizer": "the model's own tokenizer is used",
    "revision": "a revision is a part of the name: org/name@revision",
    "download_dir": "ELSEWISE_MODELS names the folder of models",
    "rope_scaling": _ROPE,
    "hf_overrides": _ROPE,
    **dict.fromkeys(("enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras"), _means_nothing),  # add_adapter needs none
    **dict.fromkeys(("enforce_eager", "disable_log_requests", "disable_log_stats", "enable_log_requests"), _means_nothing),
    **dict.fromkeys(("disable_async_output_proc", "enable_chunked_prefill", "max_logprobs", "tokenizer_mode"), _means_nothing),
}
_GROUPS: Final = {"hf_opts": _HF, "bitsandbytes_opts": _BITSANDBYTES, "engine_opts": _VLLM}
