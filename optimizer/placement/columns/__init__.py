"""Column generation: which candidates become columns, dual prices, the LP relaxation, the Lagrangian bound,
and the integer master problem.

It imports the rooms that build candidates (``runs``, ``fleets``, ``workers``). Begin with ``candidates``,
then ``dual`` and ``master``.
"""
