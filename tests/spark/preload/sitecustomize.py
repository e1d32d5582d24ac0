"""Found by every Python below Spark: those that fork workers know format ``jet`` already, so that no worker loads it.

Loading it takes a second, and Spark forks a worker for each frame that is made.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import pyspark_jet  # noqa: F401 - for those who are forked
