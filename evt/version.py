"""The version of evt; part of every cache key."""

__version__ = "0.2.0"
