"""The admin listener: dashboard, metrics, JSON state, and the few things that can be changed."""
