"""`elsewise bench`: how many tokens are computed against how many are needed, beside other libraries in one run."""
