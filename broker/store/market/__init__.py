"""Tables and repositories of offers and prices.

It imports the ground of the store. Begin with ``offers``, then ``prices``.
"""
