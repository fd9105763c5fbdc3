"""All links of a target cluster: which there are, and how each is."""
