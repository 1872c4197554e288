"""Checks a model folder (weights, config, tokenizer, template) before any library opens its files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from resources.files import is_file, kind_of_file, read_regular
from runtime.errors import ModelLoadError, RuntimeFault
from runtime.loading.config import (
    bytes_on_mlx,
    check_config,
    check_tokenizer_fields,
    ignored_values,
    normalised,
    quantised_with,
    shown_json,
    sizes,
)
from runtime.loading.integrity import ShelfManifest, digest_of_all, known_sha256, read_manifest, verify
from runtime.loading.paths import ADAPTER_CONFIG, is_adapter
from runtime.loading.rope import check_ropes
from runtime.loading.safetensors import check_safetensors


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checked model folder. Digests are SHA-256 hex of content, never of paths or times."""

    path: Path
    name: str  # the manifest's title, or the folder's name: "SmolLM2-135M-Instruct"
    config: Mapping[str, Any]  # config.json, normalised: rope in both spellings
    weights_digest: str  # weights and config
    text_digest: str  # tokenizer and chat template
    weights: tuple[Path, ...] = ()  # safetensors files, in the order of their names
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json; empty without one
    generation_config: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json; empty without one
    chat_template: str | None = None  # source of the template; None for a base model
    quantisation: str | None = None  # "4 bit (mlx)", or None for plain weights
    warnings: tuple[str, ...] = ()  # for `ModelInfo.warnings`


@contextmanager
def library_faults(folder: ModelFolder, library: str) -> Iterator[None]:
    """Turns exceptions of a library in the block into a `ModelLoadError` that names the file and, where possible, the field."""
    try:
        yield
    except RuntimeFault:
        raise
    except Exception as fault:
        message = " ".join(str(fault).split())[:_MAX_MESSAGE]
        cause = f"{type(fault).__name__}: {message}" if message else type(fault).__name__
        found, shapes = _faulty_field(folder.config, fault, message), sizes(folder.config)
        if found is not None:
            name, value = found
            reason = f"{folder.path}/config.json: {name} is {shown_json(value)}, which {library} cannot use ({cause}); {shapes}"
        elif isinstance(fault, OSError | MemoryError | RuntimeError | ImportError):
            reason = f"{library} cannot load {folder.name}: {cause}"
        else:
            kind = folder.config.get("model_type")
            reason = f"{folder.path}/config.json: {library} cannot make a {kind} of it ({cause}); model_type {kind}, {shapes}"
        raise ModelLoadError(reason) from fault


_MAX_MESSAGE = 300  # characters of a library's own message


def _faulty_field(config: Mapping[str, Any], fault: Exception, message: str) -> tuple[str, Any] | None:
    """The config field that a library's error refers to: one that it names, or whose value it failed to look up."""
    fields = dict(_fields_of(config))
    if "Padding_idx" in message:  # torch's own name
        return "pad_token_id", config.get("pad_token_id")
    if "embed_dim" in message:
        return "n_head", config.get("n_head")
    if config.get("rope_scaling") and ("max_position_embeddings" in message or "rope_parameters" in message):
        return "rope_scaling", config["rope_scaling"]
    for word in re.findall(r"\w+", message):
        if word in fields and ("_" in word or word == "type"):
            return word, fields[word]
    if isinstance(fault, KeyError) and fault.args:
        return next(((name, value) for name, value in fields.items() if value == fault.args[0]), None)
    return None


def _fields_of(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _fields_of(value)
        elif isinstance(value, list):
            yield from ((name, item) for item in value if isinstance(item, str))
        yield name, value


TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
SETTINGS_FILES = ("config.json", "generation_config.json")
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 32 << 20  # an index of a very large model has a few MB
MAX_TOKENIZER_BYTES = 256 << 20
WEIGHTS = ".safetensors"
_OPENED = (".json", ".jinja", WEIGHTS)  # suffixes of files that this program or a library opens
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_folder(path: Path, *, backend: str = "hf", fits: Callable[[int], None] | None = None) -> ModelFolder:
    """Checks a model folder and reads its small files. Of the weights it reads the headers, and hashes each file once.

    Args:
        path: The folder; nothing is written into it.
        backend: "hf" or "mlx": decides which quantisation and rope types are accepted.
        fits: Called with the bytes of the weights, in the engine's form and the width on disk, before they are hashed; raises
            where they are too many.

    Raises:
        ModelLoadError: A file or value is missing, broken, absurd or changed since the import; one line names it.
    """
    linked = check_entries(path)
    manifest = read_manifest(path)
    if manifest is not None:
        verify(path, manifest)
    raw = read_json(path / "config.json")
    if raw is None and is_adapter(path):
        raise ModelLoadError(
            f"{path}: an adapter, no model; load the model that it was made for and put it on it (`--adapter`, `push_lora`)"
        )
    if raw is None:
        raise ModelLoadError(f"{path}: no config.json; this is not a model folder (a GGUF file is given by its own path)")
    check_config(raw, str(path))
    config = normalised(raw)
    check_ropes(config, backend, f"{path}/config.json: {'rope_parameters' if raw.get('rope_parameters') else 'rope_scaling'}")
    weights = weight_files(path)
    for file in weights:
        check_safetensors(file)
    if fits is not None:
        stored = sum(file.stat().st_size for file in weights)
        fits(bytes_on_mlx(raw, stored) if backend == "mlx" else stored)
    hashes = _hashes([*weights, path / "config.json"], manifest)
    texts = _hashes([path / file for file in TEXT_FILES if (path / file).is_file()], manifest)
    tokenizer_config = read_json(path / "tokenizer_config.json") or {}
    check_tokenizer_fields(tokenizer_config, str(path / "tokenizer_config.json"))
    generation_config = read_json(path / "generation_config.json") or {}
    return ModelFolder(
        path=path,
        name=manifest.title if manifest else path.name,
        config=config,
        weights_digest=digest_of_all(hashes),
        text_digest=digest_of_all(texts),
        weights=weights,
        tokenizer_config=tokenizer_config,
        generation_config=generation_config,
        chat_template=chat_template_of(path, tokenizer_config),
        quantisation=_quantisation(raw, path, backend, manifest),
        warnings=(*linked, *ignored_values(config, generation_config)),
    )


def check_entries(folder: Path) -> tuple[str, ...]:
    """Checks kind, size and links of each file that is hashed or that a library opens, before any file is opened.

    Returns:
        Warnings about weights that are links to a file outside of the folder.

    Raises:
        ModelLoadError: A file is a pipe, a socket or a device; a text is too large, or is a link to a file outside of the
            folder. Links into the cache of huggingface_hub are accepted: its folders consist of them.
    """
    warnings = []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _OPENED)
    except OSError as fault:
        raise ModelLoadError(f"{folder}: cannot be listed ({fault.strerror}); check its permissions") from fault
    for path in paths:
        with suppress(OSError):  # a dangling or circular link counts as a missing file
            info = path.stat()
            kind = kind_of_file(info.st_mode)
            if kind not in (None, "a folder"):
                rest = "which is no weights" if path.suffix == WEIGHTS else "which is never read"
                raise ModelLoadError(f"{path}: {kind}, {rest}; put the model's own file there, or remove it")
            limit = MAX_TOKENIZER_BYTES if path.name == "tokenizer.json" else MAX_JSON_BYTES
            if info.st_size > limit and path.name in (*TEXT_FILES, *SETTINGS_FILES, ADAPTER_CONFIG):
                raise ModelLoadError(f"{path}: {info.st_size:,} bytes; at most {limit:,} are read")
            if path.is_symlink() and not _belongs(path.resolve(), folder.resolve()):
                link = f"{path}: a link to {path.resolve()}, outside of the model's folder"
                if path.suffix != WEIGHTS:
                    raise ModelLoadError(f"{link}; put the file itself there")
                warnings.append(f"{link}; a change of that file changes the model")
    return tuple(warnings)


def _belongs(target: Path, folder: Path) -> bool:
    """Whether a link's target is in the folder, or in the cache of huggingface_hub: models--ORG--NAME/blobs/HASH."""
    blobs = target.parent
    return target.is_relative_to(folder) or (blobs.name == "blobs" and blobs.parent.name.startswith("models--"))


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None without the file.

    Raises:
        ModelLoadError: Too large, no JSON, or no object.
    """
    try:
        value = json.loads(read_regular(path, MAX_JSON_BYTES).decode(), parse_constant=_no_constant)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror}); put the model's own file there") from fault
    except (ValueError, RecursionError) as fault:
        raise ModelLoadError(f"{path}: not readable as JSON ({str(fault)[:120]}); fetch the file again") from fault
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a {type(value).__name__}, not an object; fetch the file again")
    return value


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder's weights; all of them exist.

    Raises:
        ModelLoadError: There are none, or only pickles (which are never opened), or a part is missing.
    """
    index = read_json(path / INDEX)
    if index is not None:
        table = index.get("weight_map")
        shards = sorted({str(shard) for shard in table.values()}) if isinstance(table, Mapping) else []
        if not shards:
            raise ModelLoadError(f"{path / INDEX}: names no weights; fetch the file again")
        for shard in shards:
            if Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise ModelLoadError(f"{path / INDEX}: {shard!r} is no safetensors file of this folder")
            if not is_file(path / shard):
                raise ModelLoadError(f"{path / shard} is missing ({len(shards)} parts in all); fetch it again")
        return tuple(path / shard for shard in shards)
    found = sorted(file for file in path.glob("model*.safetensors") if file.is_file())
    if found:
        return (path / "model.safetensors",) if path / "model.safetensors" in found else tuple(found)
    raise _no_weights(path)


def _no_weights(path: Path) -> ModelLoadError:
    names = sorted(file.name for file in path.iterdir() if file.is_file())
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        return ModelLoadError(
            f"{path}: only pickled weights ({pickles[0]}), which are never opened because they can run code; "
            "choose a safetensors version of the model"
        )
    if "adapter_model.safetensors" in names:
        return ModelLoadError(f"{path}: an adapter without its base model; load the base model and add this to it")
    return ModelLoadError(f"{path}: no weights (model.safetensors or model.safetensors.index.json)")


def _quantisation(config: Mapping[str, Any], path: Path, backend: str, manifest: ShelfManifest | None) -> str | None:
    method, bits = quantised_with(config)
    if method == "mlx":
        if backend == "hf" and (manifest is None or manifest.kind != "gguf"):
            raise ModelLoadError(f"{path}: weights quantised for MLX; load it with backend='mlx' or choose the plain model")
        return f"{bits} bit (mlx)"
    if method is not None:
        raise ModelLoadError(f"{path}: weights quantised with {method}, which needs CUDA libraries; choose the plain model")
    return None


def _hashes(files: list[Path], manifest: ShelfManifest | None) -> dict[str, str]:
    """SHA-256 by file name: from the verified manifest, or else remembered or computed."""
    listed = manifest.files if manifest else {}
    return {file.name: listed[file.name].sha256 if file.name in listed else known_sha256(file) for file in files}


def chat_template_of(path: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template's source: its own file, or else ``chat_template`` of a configuration (a text, or named texts).

    Raises:
        ModelLoadError: It is too large, or no text.
    """
    file = path / "chat_template.jinja"
    try:
        text = read_regular(file, MAX_JSON_BYTES).decode()
        return text.replace("\r\n", "\n").replace("\r", "\n")  # line ends as transformers reads them
    except FileNotFoundError:
        pass
    except OSError as fault:
        raise ModelLoadError(f"{file}: cannot be read ({fault.strerror}); put the model's own file there") from fault
    except UnicodeDecodeError as fault:
        raise ModelLoadError(f"{file}: not readable as text ({fault}); fetch it again") from fault
    for config in (read_json(path / "chat_template.json") or {}, tokenizer_config):
        found = config.get("chat_template")
        if isinstance(found, list):
            named = {str(t.get("name")): t.get("template") for t in found if isinstance(t, Mapping)}
            found = named.get("default") or next(iter(named.values()), None)
        if isinstance(found, str):
            return found
    return None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
