"""The independent checker: whether a plan is valid, said a second time, one rule in a file.

It imports no other room and no solver. Begin with ``check``.
"""
