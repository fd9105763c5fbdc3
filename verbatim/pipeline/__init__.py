"""What `verbatim pipeline` does with the file of a pipeline."""
