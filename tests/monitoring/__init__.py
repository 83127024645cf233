"""The Grafana and Prometheus files that are shipped: valid, true to /metrics, and tried on a real Prometheus."""
