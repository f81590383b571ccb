"""Use cases of planning: requests for plans, the queue of the planner, and the status of plans.

It imports the domain, the ports and the rooms ``market`` and ``spend``. Begin with ``planning``.
"""
