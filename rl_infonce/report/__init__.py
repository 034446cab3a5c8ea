"""Figures and TensorBoard pages of results; matplotlib and TensorBoard are imported when used."""
