"""Training: memory and time of a step in each parallel layout, and the hours that a run holds its nodes.

It imports ``hardware``, ``constants`` and the shapes of models. Begin with ``estimate``, then ``step``;
``table`` computes the same over every SKU.
"""
