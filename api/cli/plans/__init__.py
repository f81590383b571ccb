"""Commands that plan, compare, verify and export plans.

It imports the modules of ``api.cli`` itself and ``holding``. Begin with ``plan``.
"""
