"""Which ways become columns; dual prices, the relaxation and its Lagrangian bound, the integer master.

It imports the rooms of candidates (``runs``, ``fleets``, ``crew``). Begin with ``candidates``, then
``dual`` and ``master``.
"""
