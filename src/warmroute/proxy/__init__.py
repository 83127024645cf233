"""The data path: one request from the client's bytes to a backend and back."""
