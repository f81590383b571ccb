"""The user interfaces (HTTP API, pages, command line) and the wiring of the product."""
