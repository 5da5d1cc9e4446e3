"""A CMake project as files: ``cmake_project(name, programs, targets, layouts, examples) -> {path: text}``."""

from __future__ import annotations


def cmake_project(*_: object) -> dict[str, str]:
    raise NotImplementedError
