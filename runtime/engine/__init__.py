"""The engine of this process: the owner thread with its scheduler, and the operations that a model asks of it."""
