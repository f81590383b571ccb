"""Tables and repositories of offers and prices.

It imports the modules directly under ``store``. Begin with ``offers``, then ``prices``.
"""
