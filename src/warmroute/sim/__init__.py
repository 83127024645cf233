"""A simulated vLLM: prefix cache, engine, HTTP server, and a chat workload for it."""
