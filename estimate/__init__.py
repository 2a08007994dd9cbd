"""Predictions for an Experiment that nobody has run yet. Memory, time and what follows from them."""
