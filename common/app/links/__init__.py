"""Several links in one process: a folder of their settings, one Spark session, a thread for each."""
