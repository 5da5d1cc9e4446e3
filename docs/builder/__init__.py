"""The manual as a site: pages that are generated from the code, and the build. ``python -m docs.builder``."""
