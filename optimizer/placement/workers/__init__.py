"""Questions about single services, answered by this process or by worker processes on the other cores.

It imports ``fleets``, ``problem`` and ``runtime``. Begin with ``asks``, then ``worker_pool``.
"""
