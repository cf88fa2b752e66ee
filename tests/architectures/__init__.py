"""Tiny random models of every architecture of transformers, their inputs, and how results are compared."""
