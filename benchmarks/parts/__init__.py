"""One module per part of the benchmark: what is run, and how its figures stand to the bars."""
