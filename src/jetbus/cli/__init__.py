"""The command line tool ``jet``: one module a command, and the few parts that commands share.

``main`` has the table of commands, ``frame`` what every command has in common. A command that is not used is not
imported, so that ``jet get`` starts quickly.
"""
