"""What backends on real libraries share: packs of slots as trees of tokens, their sizes, forwards by chains and buckets."""
