"""``python -m tegula`` prints the configuration."""

from .runtime import show_config

show_config()
