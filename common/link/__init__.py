"""The contract between the applications: what stands on the link's topics at the target."""
