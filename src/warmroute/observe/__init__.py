"""What people get to see: one record a request, and from it log, metrics and dashboard."""
