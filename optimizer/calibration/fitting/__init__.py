"""Fits of constants to measured rows, and the same fits with a source, a model or a GPU held out.

It imports ``tables``. Begin with ``gauss_newton``, then ``folds``.
"""
