"""Commands about spend, budgets, approvals and FOCUS files.

It imports the modules of ``api.cli`` itself. Begin with ``spend``.
"""
