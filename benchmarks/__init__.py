"""`elsewise bench`: tokens computed against tokens needed, in one run with other libraries."""
