"""The commands of ``jet``, one module each; the table in ``jetbus.cli.main`` lists them."""
