"""The command line tool ``jet``.

``main`` holds the table of commands, ``commands`` one module for each of them. The other modules are shared by several
commands: ``command`` defines their common options, ``target`` finds the bus, ``output`` prints records, ``exit_codes``
maps failures to exit codes, ``streams`` runs commands that stay connected, ``journals`` reads the past.

A command runs like this::

    words --> main: row of the command --> module in commands: click parses --> command: finds the bus --> the function
                |                                                                                              |
    exit code <-+-- errors: one line on stderr <------- Failure, JetError, ClickException, OSError ------------+

Only the module of the command in use is imported, so that ``jet get`` starts in a fraction of a second.
"""
