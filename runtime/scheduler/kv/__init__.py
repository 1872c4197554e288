"""Keys and values: where they stand, what they take, how long they are kept."""
