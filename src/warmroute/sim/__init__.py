"""A simulated vLLM: prefix cache, engine, HTTP server, a chat workload for it, and the demo that joins them."""
