"""Every way of a run (training, batch), priced as arrays; ways in two parts.

It imports ``problem``. Begin with ``candidates``, then ``builder``.
"""
