"""Use cases of planning: asking for a plan, its turn in the queue, and its standing.

It imports the domain, the ports and the rooms ``market`` and ``spend``. Begin with ``planning``.
"""
