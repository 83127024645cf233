"""Reads a log of requests and tells where prompts change that should only grow; offline, without a tokenizer."""
