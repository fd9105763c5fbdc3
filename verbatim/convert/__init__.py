"""Settings of other replicators as settings of Verbatim."""
