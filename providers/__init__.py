"""The engine that talks to providers: one file each, one contract for all."""
