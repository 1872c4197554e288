"""Scripts that generate files of the repository: the sample session, the pictures, the tables."""
