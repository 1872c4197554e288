"""One file for each stage of the sampler; `runtime.options.generation` lists them."""
