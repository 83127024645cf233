"""Whose turn is it, when an id says too little or nothing: what is remembered of conversations, as digests and counts."""
