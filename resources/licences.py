"""Licences of the distributions that are installed, or shipped in a bundle, with Elsewise."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
from pathlib import Path


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    """What a distribution says its licence is, in short."""
    about = distribution.metadata
    classified = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    written = [text.strip().partition("\n")[0] for text in about.get_all("License") or ()]  # sometimes its whole text
    return ", ".join(about.get_all("License-Expression") or classified or written) or "see its project page"


def notices() -> str:
    """The notices, then a line for each distribution: name, version, licence; in a bundle for the system's libraries too."""
    shipped = Path(__file__).parents[1] / "licences" / "LICENCES.txt"  # packaging/package.py writes it
    if shipped.is_file():
        return shipped.read_text("utf-8")
    found = {each.metadata["Name"]: each for each in importlib.metadata.distributions()}
    lines = [
        f"{name} {each.version}: {licence_of(each)}" for name, each in sorted(found.items(), key=lambda item: item[0].lower())
    ]
    return importlib.resources.files("resources").joinpath("licences.txt").read_text("utf-8") + "\n".join(lines) + "\n"
