"""One module per workload: each plays the same requests against whatever `Subject` it is given."""
