"""The quick start: two clusters, a link, a load, a kill, a verdict."""
