"""The pages about offers and prices.

It imports ``parts``. Begin with ``market_pages``.
"""
