"""What somebody who helps with a link has to see, in one file without secrets."""
