"""The lowest layer: domain rules, ports, use cases and store."""
