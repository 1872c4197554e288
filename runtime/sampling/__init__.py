"""The sampler: a chain of stages over a sorted row, and the draw at its end. `runtime.options.generation` lists the stages."""
