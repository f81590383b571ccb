"""The rules of a valid plan, said a second time and without a solver: one subject a file.

Each rule yields plain sentences, one a violation, that begin with the place in the plan.
"""
