"""The pages about plans, proposals, approvals and reservations.

It imports ``parts``. Begin with ``plan_pages``.
"""
