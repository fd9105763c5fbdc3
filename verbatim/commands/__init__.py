"""The operator's commands: options and output, one file each."""
