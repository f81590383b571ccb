"""Commands that reserve, extend and release capacity.

It imports the modules of ``api.cli`` itself. Begin with ``reserve``.
"""
