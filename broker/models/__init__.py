"""Shapes of models from their ``config.json`` or from a table of named models.

It imports the domain. Begin with ``config``.
"""
