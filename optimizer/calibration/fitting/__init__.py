"""Fits of constants to measured rows, and the same fits without a source, a model or a GPU.

It imports ``tables``. Begin with ``gauss_newton``, then ``folds``.
"""
