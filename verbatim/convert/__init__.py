"""Settings of MirrorMaker 2 as settings of Verbatim."""
