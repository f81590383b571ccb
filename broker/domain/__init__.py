"""Frozen words and pure rules; the standard library is all that this package needs."""
