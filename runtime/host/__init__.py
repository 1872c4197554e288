"""The engine process: `python -m runtime.host FD` serves one model over the socket FD that its parent gave it."""
