"""Tables and repositories of budgets, rolled-up spend and exports.

It imports the modules directly under ``store``. Begin with ``rollups``.
"""
