"""Use cases of spend: sums, projections, budgets, approvals and the close of a month.

It imports the domain, the ports and ``services.market``. Begin with ``spend``, then ``summaries``.
"""
