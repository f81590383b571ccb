"""The faces: HTTP API, pages, command line; and the one place of wiring."""
