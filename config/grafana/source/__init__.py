"""Makes Grafana's dashboards: `python -m config.grafana.source` writes them anew, with `--check` it only compares."""
