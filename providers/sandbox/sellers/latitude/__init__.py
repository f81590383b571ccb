"""Latitude in the sandbox market: its protocol and what it sells there."""
