"""How a forward of transformers is called: its arguments, its attention, CUDA graphs of it."""
