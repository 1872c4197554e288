"""The parts of the benchmark: each module runs workloads and compares their figures with bars."""
