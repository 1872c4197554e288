"""A second model beside the one in use: what there is, its engine, and the path under both."""
