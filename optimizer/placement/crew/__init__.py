"""What is asked of one service, answered by this process or by others on the other cores.

It imports ``fleets``, ``problem`` and ``runtime``. Begin with ``asks``, then ``crew``.
"""
