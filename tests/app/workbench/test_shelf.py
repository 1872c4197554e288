"""Folders, tags and the trash through the use cases, and how a long session is opened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
