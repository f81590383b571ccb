"""Commands that ask the performance core alone and show how accurate it is.

It imports the modules of ``api.cli`` itself. Begin with ``perf``.
"""
