"""Numbers over rows of a vocabulary: normalisers, ranks, sorted rows, what a draw was made of."""
