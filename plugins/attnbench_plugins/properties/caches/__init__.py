"""The caches of layers: programs of calls with them, played and judged."""
