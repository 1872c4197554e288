"""A repository at one commit: lists its files, selects those to fetch, refuses unusable models. In the child process only."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import HfApi

from runtime.errors import DownloadError, ModelLoadError
from runtime.hub.child_protocol import HubFile, HubId, RepositoryKind
from runtime.hub.responses import LOOK_UP_SECONDS, as_download_errors, page_address, with_retries
from runtime.loading.config import check_config, describe, quantised_with
from runtime.loading.model_folder import INDEX, MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, PICKLES, SETTINGS_FILES, TEXT_FILES
from runtime.loading.paths import ADAPTER_CONFIG

_MAX_LICENCE = 40  # characters of a licence's name


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a repository at one commit, by name, and the licence on its page."""

    hub_id: HubId
    commit: str
    files: dict[str, HubFile]
    licence: str = ""


def look_up(hub_id: HubId, endpoint: str | None, wait: Callable[[float, str], None], token: str = "") -> Listing:
    """Asks the hub for a repository, with retries.

    Args:
        hub_id: Repository and revision.
        endpoint: The hub's address; None: huggingface_hub's choice (``HF_ENDPOINT``).
        wait: Waits for a number of seconds; the text is the reason.
        token: Sent with requests; empty for none.

    Raises:
        DownloadError: The repository or revision does not exist, permission is missing, or the hub does not answer.
    """
    api = HfApi(endpoint=endpoint, library_name="elsewise", token=token or False)

    def ask() -> Listing:
        with as_download_errors(str(hub_id), hub_id, page_address(hub_id.repository, endpoint)):
            info = api.model_info(hub_id.repository, revision=hub_id.revision, files_metadata=True, timeout=LOOK_UP_SECONDS)
            found = [(s.rfilename, s.size, s.blob_id, s.lfs) for s in info.siblings or ()]
            licence = licence_of(info.tags)
        return _listing(hub_id, info.sha, found, licence)

    return with_retries(ask, wait)


def _listing(hub_id: HubId, commit: object, siblings: Sequence[tuple[object, object, object, object]], licence: str) -> Listing:
    def unreadable(what: object) -> DownloadError:
        return DownloadError(f"{hub_id}: the hub's answer cannot be read ({what!s:.120}); try again later")

    if not _digest(commit, 40):
        raise unreadable(f"its commit is {commit!r}")
    files = {}
    for name, size, blob, large in siblings:
        if not isinstance(name, str) or not isinstance(size, int) or size < 0:
            raise unreadable(f"{name!r} of {size!r} bytes")
        oid = getattr(large, "sha256", None) if large is not None else blob
        if not _digest(oid, 40 if large is None else 64):
            raise unreadable(f"{name!r} has the digest {oid!r}")
        files[name] = HubFile(name, size, str(oid), large is not None)
    return Listing(hub_id, str(commit), files, licence)


def licence_of(tags: object) -> str:
    """The licence among the tags ("license:mit"), whose types are not trusted."""
    named = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    found = next((tag.partition(":")[2] for tag in named if tag.startswith("license:")), "")
    return found[:_MAX_LICENCE] if found.isprintable() else ""


def _digest(value: object, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and all(char in "0123456789abcdef" for char in value)


_SHARD = re.compile(r"[A-Za-z0-9][\w.+-]*\.safetensors", re.ASCII)
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapters.safetensors")  # peft's and mlx-lm's
_CUDA = ("gptq", "awq", "bitsandbytes", "aqlm", "quip", "hqq", "eetq", "exl2", "exl3")


def kind_of(names: Collection[str]) -> RepositoryKind:
    """The kind of a repository by its files; a whole model with an adapter's configuration is a model."""
    whole = "config.json" in names and any(_is_weights(name) for name in names)
    return "adapter" if ADAPTER_CONFIG in names and not whole else "model"


def missing_for_model(names: Collection[str]) -> str:
    """Why a repository with these files is not a usable model, with a way out; empty where it may be usable."""
    if "config.json" not in names:
        return _without_config(names)
    if not any(_is_weights(name) for name in names):
        pickles = sorted(name for name in names if name.endswith(PICKLES))
        what = (
            f"only pickled weights ({pickles[0]}), which are never opened because they can run code"
            if pickles
            else "no weights"
        )
        return f"{what}; choose a safetensors version of the model"
    if "tokenizer.json" not in names:
        return "no tokenizer.json; choose a version of the model that has the fast tokenizer's file"
    return ""


def check_kind(where: str, kind: RepositoryKind, wanted: RepositoryKind | None) -> None:
    """Refuses a repository of the other kind.

    Raises:
        DownloadError: Names its kind and how to fetch it ("unsuitable").
    """
    if wanted is not None and kind != wanted:
        what = "an adapter, no model" if kind == "adapter" else "a model, no adapter"
        raise _refused(where, f"{what}; it is taken in by `elsewise models fetch` (or `fetch_{kind}`)")


def adapter_files(listing: Listing) -> tuple[HubFile, ...]:
    """Configuration and weights of an adapter.

    Raises:
        DownloadError: Its weights are missing, or pickled ("unsuitable").
    """
    where = str(listing.hub_id)
    weights = [name for name in _ADAPTER_WEIGHTS if name in listing.files]
    if not weights:
        pickles = sorted(name for name in listing.files if name.endswith(PICKLES))
        what = f"{pickles[0]} is never opened because such files can run code" if pickles else "its weights are missing"
        raise _refused(where, f"an adapter, but {what}; choose a version of it with {_ADAPTER_WEIGHTS[0]}")
    config = listing.files[ADAPTER_CONFIG]
    if config.size > MAX_JSON_BYTES:
        raise _refused(where, f"{config.name} has {config.size:,} bytes; at most {MAX_JSON_BYTES:,} are taken")
    return (config, *(listing.files[name] for name in weights))


def small_files(listing: Listing) -> tuple[HubFile, ...]:
    """Files with configuration, tokenizer and template, and the index of the weights; none is larger than allowed.

    Raises:
        DownloadError: The repository is not a usable model ("unsuitable").
    """
    where, names = str(listing.hub_id), listing.files.keys()
    if why := missing_for_model(names):
        raise _refused(where, why)
    wanted = [listing.files[name] for name in (*SETTINGS_FILES, *TEXT_FILES, INDEX) if name in names]
    for file in wanted:
        most = MAX_TOKENIZER_BYTES if file.name == "tokenizer.json" else MAX_JSON_BYTES
        if file.size > most:
            raise _refused(where, f"{file.name} has {file.size:,} bytes; at most {most:,} are taken")
    return tuple(wanted)


def weights_to_take(listing: Listing, index: Mapping[str, Any] | None) -> tuple[HubFile, ...]:
    """The safetensors files that a load needs.

    Raises:
        DownloadError: The index names no files, or one that is no safetensors file of the repository ("unsuitable").
    """
    where = str(listing.hub_id)
    if index is None:
        names = sorted(name for name in listing.files if _is_weights(name))
        names = ["model.safetensors"] if "model.safetensors" in names else names
    else:
        table = index.get("weight_map")
        names = sorted({str(shard) for shard in table.values()}) if isinstance(table, Mapping) else []
        if not names:
            raise _refused(where, f"{INDEX} names no weights")
    for name in names:
        if not _SHARD.fullmatch(name) or ".." in name:
            raise _refused(where, f"{name[:100]!r} is no safetensors file of the repository's top folder")
        if name not in listing.files:
            raise _refused(where, f"{name} is missing from the repository ({len(names)} parts in all)")
    return tuple(listing.files[name] for name in names)


def check_suitable(where: str, config: Mapping[str, Any]) -> None:
    """Refuses a model that no backend can run.

    Raises:
        DownloadError: Names the reason and a way out ("unsuitable").
    """
    try:
        check_config(config, where)
    except ModelLoadError as fault:
        raise DownloadError(str(fault), "unsuitable") from fault
    method, _ = quantised_with(config)
    if method not in (None, "mlx"):
        cuda = "which needs CUDA libraries (vLLM, or transformers with an NVIDIA GPU, runs it)"
        needs = cuda if method in _CUDA else "which nothing here reads"
        raise _refused(where, f"its weights are quantised with {method}, {needs}; choose the plain model, or one for MLX")
    found = describe(config)
    if not found.backends:
        what = f"{found.architecture} quantised for MLX" if method else f"the architecture {found.architecture}"
        raise _refused(where, f"neither transformers nor mlx-lm knows {what}; update them, or choose another model")


def _is_weights(name: str) -> bool:
    return "/" not in name and name.startswith("model") and name.endswith(".safetensors")


def _without_config(names: Iterable[str]) -> str:
    """Why a repository without config.json is not a usable model, with a way out."""
    listed = sorted(names)
    gguf = [name for name in listed if name.lower().endswith(".gguf")]
    if gguf:
        return f"only GGUF files; download one ({gguf[0]}) and take it in with: `elsewise models import FILE.gguf`"
    return "no config.json; this is not a model's repository"


def _refused(where: str, why: str) -> DownloadError:
    return DownloadError(f"{where}: {why}", "unsuitable")
