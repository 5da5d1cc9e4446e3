"""Configurations: tile shapes and schedules, and which of them a problem gets."""
