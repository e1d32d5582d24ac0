"""Found by every Python below Spark: those that fork workers know format ``jet`` already, so that no worker loads it.

Loading it takes half a second, and Spark forks a worker for each frame that is made.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    from importlib import import_module

    for name in ("pyspark_jet", "jetbus.spark.journals", "jetbus.spark.remote"):
        import_module(name)  # for those who are forked
