"""Loads a model folder, or adopts a ready torch model: offline, safetensors only, no foreign code."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from runtime.backends import facts
from runtime.backends.hf.forward import OWN, attention_of, use_own_attention
from runtime.backends.hf.offload import Offload, offloading
from runtime.backends.hf.threads import CHOICE
from runtime.backends.hf.weights import check_weights, pack_and_measure, quantization_of, replace_quantised
from runtime.errors import ModelLoadError, UnsupportedFeatureError
from runtime.loading.config import quantisation_words, shown_json, sizes
from runtime.loading.measurements import PLAIN, Perplexities
from runtime.loading.model_folder import ModelFolder, library_faults
from runtime.loading.progress import current_listener, reporting_progress
from runtime.loading.rope import check_ropes
from runtime.loading.safetensors import weights_of
from runtime.options.load import LoadOptions


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A torch model and facts from its source."""

    model: Any
    config: Any  # the text model's configuration
    name: str
    weights_digest: str
    text_digest: str
    has_template: bool
    device: torch.device  # where it computes
    parameters: int
    folder: bool = True  # False: a ready model of the caller's
    offload: Offload | None = None  # for weights on disk
    perplexities: Perplexities | None = None  # where its linear weights were packed into fewer bits
    weights: str = "auto"  # form of the weights: the option's, or plain
    quantisation: str | None = None  # of the folder itself, as in "4 and 6 bits, groups of 16 and 32"
    ignored: tuple[str, ...] = ()  # warnings about options without effect
    undo: ExitStack = field(default_factory=ExitStack)  # closed at unload, or when the load fails


def load_model(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> LoadedModel:
    """Loads the model in evaluation mode on its device.

    Raises:
        ModelLoadError: No such device, or transformers cannot load the folder; the message has its reason.
    """
    if options.threads is not None:
        CHOICE.set(options.threads)
    if isinstance(source, tuple):
        if options.offload != "none":
            raise UnsupportedFeatureError("offload='disk' takes a model folder; this model is in memory already")
        model, device = source[0], source[0].device
        ignored = check_weights(options, device, ready=True)
        attention = "sdpa" if attention_of(model) == OWN else attention_of(model)
        dtype = str(model.dtype).removeprefix("torch.")
        ignored += facts.ignored_by_ready_model(options, dtype=dtype, device=str(device), attention=attention)
        return _ready_model(*source, ignored)
    device = pick_device(options.device)
    quantization = quantization_of(source)
    if quantization is not None:
        _check_quantised(source, options, device)
    ignored = check_weights(options, device, quantised=quantization is not None)
    weights = "auto" if ignored else options.weights
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.disable_progress_bar()  # loading has a progress event of its own
    with offloading(options, device, source.name) as offload:
        with library_faults(source, "transformers"), _quiet(), _reporting_weights():
            model, found = AutoModelForCausalLM.from_pretrained(
                source.path,
                dtype=_dtype(options.dtype, device),
                attn_implementation=None if options.attention == "auto" else options.attention,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # `_check_read` refuses them with a message
                local_files_only=True,
                output_loading_info=True,
                quantization_config=quantization,
                generation_config=GenerationConfig(),  # the folder's own is read elsewhere, and an invalid one would raise here
                **({} if offload is None else offload.arguments),
            )
        _check_read(source, model.config.get_text_config(decoder=True), found)
        model = model.eval()
        if quantization is not None:
            replace_quantised(model, quantization)
        if offload is None:
            model = model.to(device)
        else:
            offload.measure(model)
        use_own_attention(model)
        parameters = offload.parameters if offload else sum(p.numel() for p in model.parameters())
        if quantization is not None:
            parameters = weights_of(source.weights, source.config).parameters
        packed = weights not in ("auto", PLAIN)
        perplexities = pack_and_measure(model, source, weights) if packed else None
        model.requires_grad_(False)  # so that nothing that records the forward tracks gradients
    undo = ExitStack()
    if offload is not None:
        undo.callback(offload.close)
    return LoadedModel(
        model=model,
        config=model.config.get_text_config(decoder=True),
        name=source.name,
        weights_digest=source.weights_digest,
        text_digest=source.text_digest,
        has_template=source.chat_template is not None,
        device=device,
        parameters=parameters,
        offload=offload,
        perplexities=perplexities,
        weights=weights,
        quantisation=source.quantisation and quantisation_words(source.config),
        ignored=ignored,
        undo=undo,
    )


def _check_quantised(source: ModelFolder, options: LoadOptions, device: torch.device) -> None:
    """Refuses options that do not work with quantised weights.

    Raises:
        ModelLoadError: Names the alternative, and the bytes that it takes.
    """
    why = ""
    if device.type != "cpu":
        why = f"on a processor alone, not on {device}: choose device='cpu'"
    elif options.dtype not in ("auto", PLAIN):
        why = f"in float32, not in {options.dtype}: leave out dtype"
    elif options.offload != "none":
        why = "from memory: leave out offload"
    if why:
        plain = 4 * weights_of(source.weights, source.config).parameters
        raise ModelLoadError(
            f"{source.path}: hf computes with quantised weights {why}, or import the file again as float32, whose weights take "
            f"{plain:,} bytes: `elsewise models import FILE --float32`"
        )


def random_copy(loaded: LoadedModel, config: Mapping[str, Any]) -> LoadedModel:
    """The same architecture with random weights in float32, in the sizes of a configuration in the form of `to_dict`."""
    made = type(loaded.config).from_dict(dict(config))
    whole = isinstance(loaded.model.config, type(loaded.config))  # else the text model is part of a multimodal one
    with torch.random.fork_rng(devices=[]), torch.device(loaded.device):
        torch.manual_seed(20_260_103)
        model = type(loaded.model)(made) if whole else AutoModelForCausalLM.from_config(made)
    model = model.float().eval().requires_grad_(requires_grad=False)
    if attention_of(loaded.model) != OWN:
        model.set_attn_implementation(attention_of(loaded.model))
    else:
        use_own_attention(model)
    return replace(
        loaded, model=model, config=made, folder=False, offload=None, weights="auto", quantisation=None, undo=ExitStack()
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers' messages about configuration and weights; our errors report the problems."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _reporting_weights() -> Iterator[None]:
    """Reports each tensor that transformers reads, by the hook of its progress bar."""
    if current_listener() is None:
        yield
        return
    before = logging.set_tqdm_hook(_bar)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def _bar(make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The progress bar of a loop in transformers, replaced by our reports for the loop over weights."""
    return reporting_progress(args[0]) if args and kwargs.get("desc") == "Loading weights" else make(*args, **kwargs)


def _check_read(source: ModelFolder, config: Any, found: Mapping[str, Any]) -> None:
    """Refuses weights that do not fit the configuration: transformers would ignore them, or draw random ones.

    Raises:
        ModelLoadError: Names a tensor.
    """
    said = sizes(config.to_dict())
    if found["mismatched_keys"]:
        first, *others = sorted(found["mismatched_keys"])
        name, stored, wanted = first
        raise ModelLoadError(
            f"{source.path}: the tensor {name}{_more(others)} is {_shape(stored)} in the weights and {_shape(wanted)} by "
            f"config.json ({said}); one of the two is another model's: fetch the model again"
        )
    if found["missing_keys"]:
        first, *others = sorted(found["missing_keys"])
        raise ModelLoadError(
            f"{source.path}: its weights lack {first}{_more(others)}, which config.json asks for ({said}); "
            "fetch the model again"
        )
    known = {field.name for field in fields(config)} if is_dataclass(config) else {"sliding_window"}
    for name in ("sliding_window", "layer_types"):
        value = source.config.get(name)
        if value and "sliding_window" not in known and (name == "sliding_window" or "sliding_attention" in value):
            raise ModelLoadError(
                f"{source.path}/config.json: {name} is {shown_json(value)}, which transformers' {config.model_type} does not "
                "follow; leave it out if the model was trained without"
            )
    unused = sorted(name for name in found["unexpected_keys"] if not _BUFFERS.search(name))
    if unused:
        first, *others = unused
        raise ModelLoadError(
            f"{source.path}: its weights hold {first}{_more(others)}, for which config.json has no place "
            f"({said}); fetch the model again"
        )


_BUFFERS = re.compile(  # derived from the configuration, but stored by older versions
    r"(rotary_emb|rope)\.inv_freq$|\.attn\.(masked_)?bias$|(^|\.)position_ids$|\.attention\.(masked_)?bias$"
)


def _more(others: Sequence[object]) -> str:
    return f" (and {len(others):,} more)" if others else ""


def _shape(sides: Iterable[int]) -> str:
    return " x ".join(f"{side:,}" for side in sides)


def pick_device(wanted: str) -> torch.device:
    """The device for a load option: auto takes CUDA, then MPS, where torch has them. TF32 is switched off.

    Raises:
        ModelLoadError: A device that torch does not have.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if wanted == "auto":
        wanted = "cuda" if cuda else "mps" if mps else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ModelLoadError(f"device {wanted!r} is not one torch knows: use auto, cpu, cuda, cuda:0 or mps") from error
    there = {"cpu": True, "cuda": cuda and (device.index or 0) < torch.cuda.device_count(), "mps": mps}
    if not there.get(device.type, False):
        raise ModelLoadError(f"device {wanted!r} is not on this machine; use device='cpu', or install the torch for it")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device


def _ready_model(model: Any, tokenizer: Any, ignored: tuple[str, ...]) -> LoadedModel:
    check_ropes(model.config.get_text_config(decoder=True).to_dict(), "hf", type(model).__name__)
    with ExitStack() as undo:
        before = attention_of(model)
        if model.training:
            undo.callback(model.train)
        if use_own_attention(model.eval()):
            undo.callback(model.set_attn_implementation, before)
        return LoadedModel(
            model=model,
            config=model.config.get_text_config(decoder=True),
            name=str(getattr(model, "name_or_path", "") or type(model).__name__).rsplit("/", 1)[-1],
            weights_digest=_hash_weights(model),
            text_digest=facts.text_digest_of(tokenizer),
            has_template=bool(getattr(tokenizer, "chat_template", None)),
            folder=False,
            device=model.device,
            parameters=sum(p.numel() for p in model.parameters()),
            ignored=ignored,
            undo=undo.pop_all(),
        )


def _hash_weights(model: Any) -> str:
    found = hashlib.sha256(model.config.to_json_string(use_diff=False).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def _dtype(wanted: str, device: torch.device) -> torch.dtype | str:
    """The dtype for a load option: auto is float32 on the CPU, elsewhere the dtype of the stored weights."""
    if wanted != "auto":
        chosen: torch.dtype = getattr(torch, wanted)  # LoadOptions checks the names
        return chosen
    return torch.float32 if device.type == "cpu" else "auto"
