"""Configurations: the tile shapes and schedules that a kernel may have."""
