"""`runner install` and `runner uninstall`: the one-file program puts itself on a host, and takes itself away again.

What the Debian package's maintainer scripts do, these do; the files are the same, in the same places.
"""
