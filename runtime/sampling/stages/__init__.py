"""One file for each stage of the sampler; `runtime.sampling.registry` lists them."""
