"""Files in the user's cache directory.

:mod:`root` finds the directory, :mod:`trust` refuses files that other users could have written, :mod:`derived` keeps
data that evt derives from its own files. :mod:`reading` reads files that a user names.
"""
