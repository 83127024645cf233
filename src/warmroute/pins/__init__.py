"""Where conversations are: session -> backend and engine."""
