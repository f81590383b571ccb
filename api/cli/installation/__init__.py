"""Commands that run servers, and those about keys.

It imports the other rooms of ``api.cli``. Begin with ``up``.
"""
