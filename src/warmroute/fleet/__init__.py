"""The backends as they are now: one owner of their state, and the loops that watch them."""
