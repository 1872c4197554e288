"""One file for each stage of the sampler; `runtime.options.sampling` lists them."""
