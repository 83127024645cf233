"""What became of every prompt token: expected of the cache, against what the backends say they had."""
