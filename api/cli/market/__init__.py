"""Commands about offers, prices and providers.

It imports the modules of ``api.cli`` itself. Begin with ``offers``.
"""
