"""The pages about spend, budgets and exports.

It imports ``parts`` and ``plans``. Begin with ``spend_pages``.
"""
