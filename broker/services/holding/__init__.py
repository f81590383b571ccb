"""Use cases of reservations: buying, releasing, and agreeing with the sellers.

It imports the domain, the ports and the rooms before it. Begin with ``reservations``.
"""
