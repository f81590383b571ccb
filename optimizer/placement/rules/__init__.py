"""The independent checker: decides a second time whether a plan is valid, with one rule in each module.

It imports no other room and no solver. Begin with ``check``.
"""
