"""The version of evt, which is part of every cache key, and the version of its JSON documents."""

__version__ = "0.2.0"
#: The version of the JSON documents of the command line. New fields keep it; a removed or changed field raises it.
JSON_SCHEMA = 1
