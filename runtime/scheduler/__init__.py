"""What is computed next: queries, prompts and running generations, packed so that no token is computed twice."""
