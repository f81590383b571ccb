"""Ports: the protocols through which use cases reach providers and the planner, a file per noun.

It imports the domain. Begin with ``unit_of_work``.
"""
