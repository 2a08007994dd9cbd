"""Measure what a machine can really do: kernels, links and small trainings, in one file of figures with intervals."""
