"""The engine that predicts and places: ``performance`` estimates, ``placement`` optimizes."""
