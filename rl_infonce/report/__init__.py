"""Arrays and scores to statistics, tables, figures, pages and video, whoever trained or scored.

SciPy, matplotlib and TensorBoard are imported when they are used.
"""
