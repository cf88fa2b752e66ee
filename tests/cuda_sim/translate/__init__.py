"""Translates PTX into C that calls the simulator's runtime."""
