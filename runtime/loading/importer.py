"""Bringing a model onto the shelf: converted or copied into a hidden folder beside it, renamed when it is whole.

Whatever happens before the rename (a fault, a cancel, kill -9) leaves nothing that is listed; the next import removes
the remains.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from runtime.errors import ModelLoadError
from runtime.loading.check import INDEX, SETTINGS_FILES, TEXT_FILES, chat_template_of, open_folder, read_json, weight_files
from runtime.loading.digests import digest_of_all, known_sha256, sync_all, sync_folder, template_digest
from runtime.loading.folder import ModelFolder
from runtime.loading.gguf.convertible import check
from runtime.loading.manifest import FORMAT, Manifest, notes_of, read_manifest, write_manifest
from runtime.loading.paths import create_private, made_models_dir, models_dir, shelf_path
from runtime.loading.progress import OnProgress, Progress, ignore

_HIDDEN = ".importing-"
_LOCK_SECONDS = 900.0  # another import may be converting a large file
_SLOWEST = 2 << 20  # bytes of GGUF per second, below which a conversion counts as hung
_SPARE_BYTES = 256 << 20
SOURCE = "source.gguf"  # the file a model was made from, where it is kept


def import_model(
    path: str | Path, name: str | None = None, progress: OnProgress = ignore, *, title: str | None = None, keep: bool = False
) -> ModelFolder:
    """Puts a GGUF file (converted to float32) or a model folder (copied) on the shelf. Blocks; seconds to minutes.

    Args:
        path: The file or folder; it is only read.
        name: What it is found by later: ``name`` or ``org/name@revision``; made from the file's name by default.
        progress: Called at least once a second while work is done; raising in it cancels the import.
        title: What users see; the name of the file or folder by default.
        keep: Also keeps a copy of the GGUF file, as ``source.gguf``.

    Returns:
        The model, checked. One that is there already, from the same content and under that name, is not made again.

    Raises:
        ModelLoadError: The source is damaged or not supported, the name is taken, or the disk is full.
    """
    source = Path(path).expanduser().absolute()
    if source.is_file():
        check(source)
        kind, sha256 = "gguf", known_sha256(source)
    elif source.is_dir():
        open_folder(source, backend="mlx")
        kind, sha256 = "folder", digest_of_all({file.name: known_sha256(file) for file in _wanted(source)})
    else:
        raise ModelLoadError(f"{source}: no such file or folder")
    with _only_one_import(made_models_dir()) as shelf:
        model_id, present = _place(name, source, sha256)
        if present is not None:
            return present
        _check_space(shelf, source, kind)
        hidden = Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=shelf))
        try:
            parameters = _convert(source, hidden, progress) if kind == "gguf" else _copy(source, hidden, progress)
            if keep and kind == "gguf":
                with source.open("rb") as there, create_private(hidden / SOURCE) as here:
                    shutil.copyfileobj(there, here, 8 << 20)
            template = chat_template_of(hidden, read_json(hidden / "tokenizer_config.json") or {})
            manifest = Manifest(
                format=FORMAT,
                id=model_id,
                title=title or (source.stem if kind == "gguf" else source.name),
                source=source.name,
                source_sha256=sha256,
                kind="gguf" if kind == "gguf" else "folder",
                parameters=parameters,
                files=notes_of(hidden),
                template_digest=None if template is None else template_digest(template),
            )
            write_manifest(hidden, manifest)
            open_folder(hidden, backend="mlx")
            sync_all(hidden)
            _publish(hidden, shelf_path(model_id))
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        return open_folder(shelf_path(model_id), backend="mlx")


def find_imported(sha256: str) -> Path | None:
    """The folder on the shelf that was made from a file with this SHA-256; None where there is none."""
    for folder in shelf_folders():
        with contextlib.suppress(ModelLoadError):  # a damaged neighbour is not what was asked for
            manifest = read_manifest(folder)
            if manifest is not None and manifest.source_sha256 == sha256:
                return folder
    return None


def shelf_folders() -> list[Path]:
    """All model folders of the shelf, complete or not; hidden ones are no models."""
    try:
        return sorted(folder for folder in models_dir().iterdir() if folder.is_dir() and not folder.name.startswith("."))
    except OSError:
        return []


@contextlib.contextmanager
def _only_one_import(shelf: Path) -> Iterator[Path]:
    """Imports of all processes take turns; remains of dead ones are removed."""
    try:
        with filelock.FileLock(shelf / ".lock", timeout=_LOCK_SECONDS, mode=0o600):
            for remains in shelf.glob(f"{_HIDDEN}*"):
                shutil.rmtree(remains, ignore_errors=True)
            yield shelf
    except filelock.Timeout as fault:
        raise ModelLoadError(f"another import has held {shelf} for {_LOCK_SECONDS:,.0f} s; wait for it or end it") from fault
    except OSError as fault:
        raise ModelLoadError(f"{shelf}: {fault.strerror}; free some space or set ELSEWISE_MODELS") from fault


def _place(name: str | None, source: Path, sha256: str) -> tuple[str, ModelFolder | None]:
    """The id to import under, and the model if it is there already and sound."""
    model_id = name or _id_from(source)
    taken = _manifest_at(shelf_path(model_id))
    if taken is not None and taken.source_sha256 != sha256:
        if name is not None:
            raise ModelLoadError(f"another model is called {name!r} (from {taken.source}); choose another name or remove it")
        model_id = f"{model_id}-{sha256[:8]}"
        taken = _manifest_at(shelf_path(model_id))
    if taken is not None:
        with contextlib.suppress(ModelLoadError):  # damaged: made again and replaced
            return model_id, open_folder(shelf_path(model_id), backend="mlx")
    return model_id, None


def _manifest_at(folder: Path) -> Manifest | None:
    with contextlib.suppress(ModelLoadError):
        return read_manifest(folder)
    return None


def _id_from(source: Path) -> str:
    stem = source.stem if source.is_file() else source.name
    cleaned = re.sub(r"[^A-Za-z0-9._+]+", "-", stem, flags=re.ASCII).strip("-._+")
    return re.sub(r"\.{2,}|-{2,}", "-", cleaned)[:100] or "model"


def _wanted(folder: Path) -> list[Path]:
    """What is taken of a model folder: safetensors, configs, tokenizer and template; nothing else is opened."""
    small = [folder / name for name in (*SETTINGS_FILES, *TEXT_FILES, INDEX)]
    return [*(file for file in small if file.is_file()), *weight_files(folder)]


def _check_space(shelf: Path, source: Path, kind: str) -> None:
    needed = check(source).float32_bytes if kind == "gguf" else sum(file.stat().st_size for file in _wanted(source))
    free = shutil.disk_usage(shelf).free
    if needed + _SPARE_BYTES > free:
        raise ModelLoadError(
            f"{source.name} needs {needed / 1e9:,.1f} GB in {shelf}, {free / 1e9:,.1f} GB are free; "
            "free some space or set ELSEWISE_MODELS"
        )


def _copy(source: Path, target: Path, progress: OnProgress) -> int:
    files = _wanted(source)
    total, done = sum(file.stat().st_size for file in files), 0
    for file in files:
        with file.open("rb") as there, create_private(target / file.name) as here:
            while chunk := there.read(8 << 20):
                here.write(chunk)
                done += len(chunk)
                progress(Progress("copy", done, total))
            here.flush()
    return 0


def _convert(source: Path, target: Path, progress: OnProgress) -> int:
    """Runs the converter; kills it when the caller cancels, when it hangs, and when anything else goes wrong."""
    limit = 120 + source.stat().st_size / _SLOWEST
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "runtime.loading.convert", str(source), str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=target,
        )
        try:
            answer = _follow(child, limit, progress)
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        if "parameters" in answer:
            return int(answer["parameters"])
        if "error" in answer:
            raise ModelLoadError(str(answer["error"]))
        errors.seek(0)
        last = (errors.read().decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise ModelLoadError(f"{source}: the conversion ended without an answer ({last[:200]})")


def _follow(child: subprocess.Popen[bytes], limit: float, progress: OnProgress) -> dict[str, Any]:
    """Reads the child's lines until it is done; reports at least once a second."""
    assert child.stdout is not None
    deadline = time.monotonic() + limit
    state = Progress("convert", 0, 0)
    answer: dict[str, Any] = {}
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            progress(state)
            if time.monotonic() > deadline:
                return {"error": f"the conversion took longer than {limit:,.0f} s and was stopped"}
            if not selector.select(timeout=1.0):
                continue
            data = child.stdout.read1(1 << 16)  # type: ignore[attr-defined]  # a BufferedReader, which typeshed calls IO
            if not data:
                return answer
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                if "done" in answer:
                    state = Progress("convert", answer["done"], answer["total"])


def _publish(hidden: Path, final: Path) -> None:
    """Gives the finished folder its name; a damaged one that has it makes way."""
    if final.exists():
        aside = Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=final.parent))
        final.rename(aside / "old")
        hidden.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        hidden.rename(final)
    sync_folder(final.parent)
