"""What teams ask for and what they get planned: workloads, policy and the plan.

It imports ``basics`` and ``market``. Begin with ``workload``, then ``plan``.
"""
