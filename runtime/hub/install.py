"""Installs fetched files as a model or an adapter on the shelf."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from huggingface_hub import constants

from runtime.adapters.folder import read_header
from runtime.adapters.layouts import AdapterHeader
from runtime.errors import AdapterError, ModelLoadError
from runtime.hub.child_protocol import DownloadPlan
from runtime.loading.integrity import HubNote, digest_of_all
from runtime.loading.model_folder import open_folder, weight_files
from runtime.loading.paths import make_private
from runtime.loading.safetensors import weights_of
from runtime.shelf.atomic_install import install
from runtime.text.tokenizer import Tokenizer


def install_download(plan: DownloadPlan, folder: Path, sums: Mapping[str, str], endpoint: str | None) -> None:
    """Checks fetched files as a load does, and installs them atomically.

    Args:
        plan: Of the download.
        folder: Holds each file as ``OID.part``.
        sums: SHA-256 by file name.
        endpoint: The hub's address; None: huggingface_hub's choice.

    Raises:
        ModelLoadError: The files are faulty, the id is taken, or the disk is full.
    """
    adapter = plan.kind == "adapter"

    def write(hidden: Path) -> int:
        last_names = {file.oid: file.name for file in plan.files}
        for file in plan.files:
            _move(folder / f"{file.oid}.part", hidden / file.name, last=last_names[file.oid] == file.name)
        _note_for_huggingface(hidden, plan)
        return _parameters(hidden, plan)

    check: Callable[[Path], object] = _header if adapter else _check_text
    install(
        folder,
        plan.name,
        digest_of_all(sums),
        0,
        write=write,
        opened=check,
        kind="adapter" if adapter else "folder",
        title=plan.repository.rpartition("/")[2],
        made_from=f"{plan.repository}@{plan.revision}",
        sums=sums,
        hub=HubNote(plan.repository, plan.revision, plan.commit, endpoint or constants.ENDPOINT),
    )


def _parameters(hidden: Path, plan: DownloadPlan) -> int:
    if plan.kind == "model":
        return weights_of(weight_files(hidden), plan.config).parameters
    header = _header(hidden)
    try:
        header.read()  # NaN, infinity, shapes that do not fit together
    except AdapterError as fault:
        raise ModelLoadError(str(fault)) from fault
    return header.parameters


def _check_text(folder: Path) -> None:
    """Checks a model and its tokenizer, which may be unreadable or make its library panic.

    Raises:
        ModelLoadError: Names the file.
    """
    try:
        Tokenizer.from_folder(open_folder(folder, backend="mlx"))
    except ModelLoadError as fault:
        raise ModelLoadError(str(fault).replace(f"{folder}/", "")) from fault  # the hidden folder is removed


def _header(folder: Path) -> AdapterHeader:
    try:
        return read_header(folder)
    except AdapterError as fault:
        raise ModelLoadError(str(fault)) from fault


def _move(source: Path, target: Path, *, last: bool) -> None:
    """Hard-links a file, so that the fetched one is kept if the installation fails; renames or copies it where links fail.

    Args:
        source: The fetched file.
        target: Its new name.
        last: Whether no later file has the same content.
    """
    try:
        os.link(source, target)
    except OSError:
        if last:
            source.rename(target)
        else:
            shutil.copyfile(source, target)


def _note_for_huggingface(hidden: Path, plan: DownloadPlan) -> None:
    """Writes huggingface_hub's metadata of a local folder, so that its tools do not fetch the files again."""
    notes = hidden / ".cache" / "huggingface" / "download"
    make_private(notes)
    for file in plan.files:
        when = (hidden / file.name).stat().st_mtime
        (notes / f"{file.name}.metadata").write_text(f"{plan.commit}\n{file.oid}\n{when}\n")
