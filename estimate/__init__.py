"""Predictions for an Experiment that nobody has run yet. So far: the memory of the model states."""
