"""Training: the memory and time of a step in each layout, and the hours that a run is held.

It imports ``hardware``, ``constants`` and the shapes of models. Begin with ``estimate``, then ``step``;
``table`` does the same over every SKU.
"""
