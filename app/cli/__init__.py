"""The command line: global options stand before the command; results go to stdout, everything else to stderr."""

from app.cli.main import main

__all__ = ["main"]
