"""The ways to an engine: in this process (`local`), or in an engine process (`spawn`).

`python -m runtime.transport FD` is the engine process: it serves one model over the socket FD that its parent gave it.
"""
