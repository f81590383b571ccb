"""Planning: workloads, policies, and the plan that answers them.

It imports ``basics`` and ``market``. Begin with ``workload``, then ``plan``.
"""
