"""Tables and repositories of budgets, rolled-up spend and exports.

It imports the ground of the store. Begin with ``rollups``.
"""
