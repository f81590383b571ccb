"""Use cases of reservations: buying, releasing, and reconciling with the providers.

It imports the domain, the ports, and the rooms ``market``, ``spend`` and ``planning``. Begin with
``reservations``.
"""
